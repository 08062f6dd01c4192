"""Draw text, boxes, photographs, heat maps and the marks of a stage with matplotlib.

One engine for every file: a `Drawing` becomes pixels by matplotlib's Agg backend and SVG by its
SVG backend. `overlay` returns the same marks as an SVG fragment for pages. The last functions turn
tensors into images, and images into data URLs.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
import warnings
import xml.etree.ElementTree as ElementTree
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, Bbox, TransformedBbox
from PIL import Image
from torch import Tensor, nn

from ..shapes import Bool, Float, Int
from .story import Mark, StageView, find_borders, undo_normalization

REACH = 5.0  # heat maps range from a fifth of the mean to five times the mean
LARGEST = 448  # pixels: photographs are embedded no larger than this
NO_PATCH = "#F2F2F2"  # the color of a patch that is gone
INK, QUIET, PALE, BAR = "#1A1A1A", "#5F6368", "#E4E6E8", "#F6F7F8"
SAME, OTHER = "#00795A", "#B34700"  # the pruned model gives the same answer, or another
ACCENT = "#6D4AA8"  # of controls and progress: unlike any mark and any heat
#: color and opacity of marked patches; Okabe and Ito's colors suit every kind of color vision
COVER = {
    Mark.SIMILAR: ("#E69F00", 0.85),
    Mark.UNIMPORTANT: ("#0072B2", 0.85),
    Mark.GONE: (NO_PATCH, 1.0),
}
#: the same where the patches that are left have to stand out
PALE_COVER = COVER | {Mark.SIMILAR: ("#FAEBCB", 1.0), Mark.UNIMPORTANT: ("#D3E5F1", 1.0)}
TINT = 0.8  # opacity of a token's mean color on its patches
# Widths below are in patches.
OUTLINE = (("#1A1A1A", 0.55, 0.2), ("#FFFFFF", 0.95, 0.09))  # of tokens: color, opacity, width
EDGES = ("#FFFFFF", 0.18, 0.04)  # between patches
#: from a similar patch to its partner: color, width, and diameter of the dot at the partner
PARTNERS = (("#FFFFFF", 0.24, 0.44), ("#D55E00", 0.12, 0.32))

SCALE = 1.5  # pixels per unit: sharp on most screens, and small enough to send
WORDS = 13.0  # size of most text
FONTS = ("DejaVu Sans", "sans-serif")  # the first comes with matplotlib
CLASSES = frozenset({*Mark, "edges", "outline", "partners"})  # of the elements of an overlay
SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"

Bounds = tuple[float, float, float, float]  # left, top, width, height


class Drawing:
    """A white sheet with the origin at the top left; set `height` when all is drawn.

    A unit is a pixel of a screen and a point of matplotlib's.
    """

    def __init__(self, width: float, height: float = 1.0, title: str = "") -> None:
        self.width, self.height, self.title = width, height, title
        self._figure = Figure(dpi=72, facecolor="white")
        self._figure.suppressComposite = True  # an SVG file keeps images apart
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_autoscale_on(False)
        self._photos: list[tuple[Any, Image.Image]] = []

    def text(
        self, x: float, y: float, text: str, *, size: float = WORDS, bold: bool = False,
        color: str = INK, align: str = "left", width: float | None = None,
    ) -> None:  # fmt: skip
        """Write a line with its baseline at y, shortened to `width`."""
        if width is not None:
            text = shorten(text, width, size, bold)
        self._add(self._axes.text(x, y, text, fontproperties=_font(size, bold), color=color,
                                  ha=align, va="baseline", parse_math=False,
                                  usetex=False))  # fmt: skip

    def box(
        self, place: Bounds, fill: str, *, outline: str | None = None, opacity: float = 1.0
    ) -> None:
        x, y, width, height = place
        self._add(Rectangle((x, y), width, height, facecolor=fill, alpha=opacity, linewidth=0.8,
                            edgecolor=outline or "none"))  # fmt: skip

    def panel(
        self, place: Bounds, image: Image.Image, stage: StageView | None = None, *,
        lines: bool = False, pale: bool = False,
    ) -> None:  # fmt: skip
        """Draw a photograph and what a stage did to its patches."""
        self._photos.append((self._image(place, image.convert("RGB"), "hanning"), image))
        if stage is not None:
            self.marks(place, stage, lines=lines, pale=pale)

    def heat(
        self, place: Bounds, values: Float[Tensor, "rows cols"], *, pale: bool = False,
        reach: float = REACH,
    ) -> None:  # fmt: skip
        """Draw a heat map of importance; a pale one does not count."""
        self._image(place, heat_map(values, reach), "none").set_alpha(0.4 if pale else 1.0)

    def marks(
        self, place: Bounds, stage: StageView, *, lines: bool = False, pale: bool = False
    ) -> None:
        """Cover dropped patches, tint and outline merged ones; draw `lines` to partners."""
        x, y, width, height = place
        rows, cols = stage.fate.shape
        unit = width / cols
        to_page = Affine2D().scale(unit, height / rows).translate(x, y) + self._axes.transData
        panel = TransformedBbox(Bbox([(0, 0), (cols, rows)]), to_page)

        def add(name: str, path: Path, **style: Any) -> None:
            patch = PathPatch(path, transform=to_page, gid=name, **style)
            self._add(patch).set(clip_on=True, clip_box=panel)

        def stroke(name: str, path: Path, color: str, opacity: float, wide: float) -> None:
            add(name, path, fill=False, edgecolor=color, alpha=opacity, linewidth=wide * unit,
                capstyle="projecting" if name == "outline" else "round", snap=False)  # fmt: skip

        for mark, (color, opacity) in (PALE_COVER if pale else COVER).items():
            marked = stage.marked(mark)
            if marked.any():
                add(mark, _rectangles(marked), facecolor=color, alpha=opacity, linewidth=0)
        stroke("edges", _edges(rows, cols), *EDGES)
        if stage.token is not None and stage.tint is not None:
            opacities = TINT * stage.marked(Mark.MERGED)[..., None].float()
            tint = np.concatenate([stage.tint.numpy(), opacities.numpy()], axis=-1)
            self._image(place, tint, "none").set_gid(Mark.MERGED)
            borders = _borders(stage.token)
            for color, opacity, wide in OUTLINE:
                stroke("outline", borders, color, opacity, wide)
        if lines and (pairs := stage.pairs()):
            ends = np.array(pairs) + 0.5
            # A dot is a line too short to see with round ends: one path for all of them.
            dots = np.stack([ends[:, 1], ends[:, 1] + (1e-3, 0)], axis=1)
            for color, wide, dot in PARTNERS:
                stroke("partners", _segments(ends), color, 1.0, wide)
                stroke("partners", _segments(dots), color, 1.0, dot)

    def pixels(self, scale: float = SCALE) -> Image.Image:
        """Render the sheet, `scale` times as large as on a screen."""
        self._fit()
        self._figure.set_dpi(72 * scale)
        canvas = FigureCanvasAgg(self._figure)
        with missing_glyphs_allowed():
            canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")

    def svg(self) -> str:
        """Render the sheet as an SVG file: text as text, and every photograph embedded once."""
        photos: dict[int, tuple[str, Image.Image]] = {}
        for artist, image in self._photos:
            name, _ = photos.setdefault(id(image), (f"photo{len(photos)}", image))
            artist.set(data=np.zeros((1, 1, 3)), interpolation="none", gid=name)
        options = {"svg.fonttype": "none", "svg.hashsalt": "zerotprune"}
        with matplotlib.rc_context(options), missing_glyphs_allowed():
            text = self.plain_svg()
        # matplotlib would embed a photograph again, as PNG, for each panel.
        drawn = re.sub(r'<image [^>]*id="(photo\d+)"[^>]*(transform="[^"]*")[^>]*/>',
                       r'<use xlink:href="#\1" \2/>', text)  # fmt: skip
        images = "".join(
            f'<image id="{name}" width="1" height="1" preserveAspectRatio="none" '
            f'xlink:href="{photo_url(image)}"/>'
            for name, image in photos.values()
        )
        drawn = drawn.replace("<defs>", f"<defs>{images}", 1)
        return re.sub(r'="([\d.]+)pt"', r'="\1"', drawn, count=2)

    def plain_svg(self) -> str:
        """Render the sheet as matplotlib does, without touching global state: it is thread-safe."""
        self._fit()
        text = io.StringIO()
        about = {"Title": self.title, "Date": None, "Creator": None}
        FigureCanvasSVG(self._figure).print_svg(text, metadata=about)
        return text.getvalue()

    def _fit(self) -> None:
        self._figure.set_size_inches(self.width / 72, self.height / 72)
        self._axes.set(xlim=(0, self.width), ylim=(self.height, 0))

    def _image(self, place: Bounds, pixels: Any, interpolation: str) -> Any:
        x, y, width, height = place
        extent = (x, x + width, y + height, y)
        return self._add(self._axes.imshow(pixels, extent=extent, aspect="auto",
                                           interpolation=interpolation))  # fmt: skip

    def _add(self, artist: Any) -> Any:
        """Draw above everything drawn so far."""
        if artist.axes is None:
            self._axes.add_artist(artist)
        artist.set(zorder=len(self._axes.get_children()), clip_on=False)
        return artist


def overlay(stage: StageView, *, lines: bool) -> str:
    """Return the marks of a stage as an SVG fragment to lay over the image; a unit is a patch.

    The class of every element says what it marks; colors are attributes, so that a style sheet
    may change them.
    """
    rows, cols = stage.fate.shape
    drawing = Drawing(cols, rows)
    drawing.marks((0, 0, cols, rows), stage, lines=lines)
    fragment = ""
    for element in ElementTree.fromstring(drawing.plain_svg()).iter():
        name = element.get("id")
        if name not in CLASSES:
            continue
        if element.tag == f"{SVG}image":
            url = "".join(element.attrib[f"{XLINK}href"].split())
            fragment += (
                f'<image class="{name}" width="{cols}" height="{rows}" href="{url}" '
                'preserveAspectRatio="none" style="image-rendering:pixelated"/>'
            )
            continue
        path = element[0]
        style = (part.split(": ") for part in path.attrib["style"].split("; "))
        attributes = " ".join(f'{key}="{value}"' for key, value in style)
        line = re.sub(r" ?([MLz]) ?", r"\1", " ".join(path.attrib["d"].split()))
        fragment += f'<path class="{name}" d="{line}" {attributes}/>'
    return fragment


def _runs(mask: Any) -> tuple[Any, Any, Any]:
    """Find the runs of True in the rows of a mask: row, start and end of each."""
    steps = np.diff(np.pad(np.asarray(mask, dtype=np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = (steps == 1).nonzero()
    return rows, starts, (steps == -1).nonzero()[1]


def _rectangles(marked: Bool[Tensor, "rows cols"]) -> Path:
    """Return one path around the marked patches; neighbors in a row are one rectangle."""
    rows, starts, ends = _runs(marked)
    x = np.stack([starts, ends, ends, starts, starts], axis=1)
    y = np.stack([rows, rows, rows + 1, rows + 1, rows], axis=1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(np.stack([x, y], axis=-1).reshape(-1, 2), codes * len(rows))


def _segments(ends: Any) -> Path:
    """Return one path of many lines, from an array of shape (lines, 2, 2)."""
    path = Path(np.reshape(ends, (-1, 2)), [Path.MOVETO, Path.LINETO] * len(ends))
    path.should_simplify = False  # it would drop what is shorter than a ninth of a unit
    return path


def _edges(rows: int, cols: int) -> Path:
    """Return the lines between patches."""
    upright = [((col, 0), (col, rows)) for col in range(1, cols)]
    level = [((0, row), (cols, row)) for row in range(1, rows)]
    return _segments(upright + level)


def _borders(token: Int[Tensor, "rows cols"]) -> Path:
    """Return the lines between different tokens."""
    in_row, in_column = find_borders(token)
    cols, tops, bottoms = _runs(in_row.T)
    rows, lefts, rights = _runs(in_column)
    upright = np.stack([cols + 1, tops, cols + 1, bottoms], axis=1)
    level = np.stack([lefts, rows + 1, rights, rows + 1], axis=1)
    return _segments(np.concatenate([upright, level]).reshape(-1, 2, 2))


@lru_cache(maxsize=64)
def _font(size: float, bold: bool) -> Any:
    return FontProperties(family=FONTS, size=size, weight="bold" if bold else "normal")


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = WORDS, bold: bool = False) -> float:
    """Measure a line of text."""
    with missing_glyphs_allowed():
        width, *_ = text_to_path.get_text_width_height_descent(text, _font(size, bold), False)
    return float(width)


def shorten(text: str, width: float, size: float = WORDS, bold: bool = False) -> str:
    """Cut the text to the width, with an ellipsis where something is left out."""
    if text_width(text, size, bold) <= width:
        return text

    def too_long(count: int) -> bool:
        return text_width(f"{text[:count]}…", size, bold) > width

    count = bisect_left(range(1, len(text)), True, key=too_long)
    return f"{text[:count].rstrip()}…"


def wrap(text: str, width: float, size: float = WORDS, bold: bool = False) -> list[str]:
    """Break the text into lines of at most `width`, inside a word only if it is too long.

    >>> wrap("grocery store: 37 %", 110)
    ['grocery store:', '37 %']
    """
    lines = [text]
    most = int(4 * width / size)  # no letter is narrower than a quarter of its height
    for characters in range(min(len(text), most), 0, -1):
        lines = textwrap.wrap(text, characters, break_on_hyphens=False) or [""]
        if all(text_width(line, size, bold) <= width for line in lines):
            break
    return lines


@contextmanager
def missing_glyphs_allowed() -> Iterator[None]:
    """Silence warnings for glyphs that the font lacks: it draws boxes for them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        warnings.filterwarnings("ignore", "Matplotlib currently does not support", UserWarning)
        yield


def as_image(
    values: Float[Tensor, "3 height width"], model: nn.Module | None = None
) -> Image.Image:
    """Undo the model's normalization to see what it saw."""
    pixels = (undo_normalization(values, model) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def heat_map(values: Float[Tensor, "rows cols"], reach: float = REACH) -> Image.Image:
    """Color importance, one pixel a patch, on a logarithmic scale around 1."""
    level = (1 + np.log(np.clip(values.numpy(), 1 / reach, reach)) / np.log(reach)) / 2
    # Cividis rises evenly in lightness and is safe for every kind of color vision.
    colors = matplotlib.colormaps["cividis"].with_extremes(bad=NO_PATCH)
    return Image.fromarray(colors(np.ma.masked_invalid(level), bytes=True)[..., :3].copy())


def heat_scale(reach: float = REACH) -> Float[Tensor, "1 64"]:
    """Return values whose heat map is the whole range of colors in a row."""
    return reach ** torch.linspace(-1, 1, 64)[None]


def photo_url(image: Image.Image) -> str:
    """Encode a photograph as a data URL, as JPEG."""
    small = image.convert("RGB")
    small.thumbnail((LARGEST, LARGEST))
    return _url(small, "jpeg", quality=90, subsampling=0)


def heat_map_url(values: Float[Tensor, "rows cols"], reach: float = REACH) -> str:
    """Encode a heat map as a data URL, without loss."""
    return _url(heat_map(values, reach), "png")


def _url(image: Image.Image, kind: str, **options: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
