"""A sheet as pixels."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from .groups import find_borders
from .palette import (
    COVER,
    EDGE,
    EDGE_STRENGTH,
    OUTLINE,
    PALE_COVER,
    PARTNERS,
    TINT,
    Mark,
    rgb,
)
from .pixels import heat_map
from .sheet import Box, Heat, Panel, Place, Sheet, Text, font
from .story import StageView

SCALE = 1.5  # sharp on most screens, and small enough to send
_FINER = 3  # marks are drawn so many times larger and shrunk, which smooths them
#: What the built-in face can draw; all else comes from one that has more.
_KNOWN = frozenset(map(chr, range(32, 127))) | set("·±…")


def rasterize(sheet: Sheet, scale: float = SCALE) -> Image.Image:
    """The sheet on white, `scale` times as large as on a screen."""
    drawn = Image.new("RGB", (round(sheet.width * scale), round(sheet.height * scale)), "white")
    pen = ImageDraw.Draw(drawn)
    for shape in sheet.shapes:
        if isinstance(shape, Text):
            _write(pen, shape, scale)
        elif isinstance(shape, Box):
            _fill(pen, shape, scale)
        else:
            left, top, right, bottom = _corners(shape, scale)
            drawn.paste(_pixels(sheet, shape, (right - left, bottom - top)), (left, top))
    return drawn


def paint(
    image: Image.Image,
    stage: StageView,
    size: tuple[int, int],
    *,
    lines: bool = False,
    pale: bool = False,
) -> Image.Image:
    """The image with what `overlay` lays over it: covered patches, groups, edges, lines."""
    large = size[0] * _FINER, size[1] * _FINER
    rows, cols = stage.fate.shape
    across, down = large[0] / cols, large[1] / rows
    painted = image.convert("RGB").resize(large, Image.Resampling.BICUBIC)
    for mark, (colour, strength) in (PALE_COVER if pale else COVER).items():
        painted.paste(rgb(colour), (0, 0), _mask(stage.marked(mark), strength, large))
    _draw_edges(painted, rows, cols)
    if stage.token is not None and stage.tint is not None:
        colours = Image.fromarray((255 * stage.tint).round().to(torch.uint8).numpy())
        tint = colours.resize(large, Image.Resampling.NEAREST)
        painted.paste(tint, (0, 0), _mask(stage.marked(Mark.MERGED), TINT, large))
        _draw_outlines(painted, stage.token)
    if lines:
        pen = ImageDraw.Draw(painted)
        for colour, thick, dot in PARTNERS:
            for pair in stage.pairs():
                ends = [((x + 0.5) * across, (y + 0.5) * down) for x, y in pair]
                pen.line(ends, colour, max(1, round(thick * across)))
                pen.circle(ends[1], dot * across / 2, colour)
    return painted.reduce(_FINER)


def _mask(marked: Tensor, strength: float, size: tuple[int, int]) -> Image.Image:
    cover = marked.to(torch.uint8) * round(255 * strength)
    return Image.fromarray(cover.numpy()).resize(size, Image.Resampling.NEAREST)


def _draw_edges(painted: Image.Image, rows: int, cols: int) -> None:
    """Faint lines between the patches."""
    large = painted.size
    across, down = large[0] / cols, large[1] / rows
    edges, width = Image.new("L", large), max(1, round(EDGE * across))
    pen = ImageDraw.Draw(edges)
    for at in range(1, cols):
        pen.line((at * across, 0, at * across, large[1]), round(255 * EDGE_STRENGTH), width)
    for at in range(1, rows):
        pen.line((0, at * down, large[0], at * down), round(255 * EDGE_STRENGTH), width)
    painted.paste((255, 255, 255), (0, 0), edges)


def _draw_outlines(painted: Image.Image, token: Tensor) -> None:
    """Where groups of merged patches end."""
    rows, cols = token.shape
    across, down = painted.width / cols, painted.height / rows
    beside, above = find_borders(token)
    upright = [(col + 1, row, col + 1, row + 1) for row, col in beside.nonzero().tolist()]
    level = [(col, row + 1, col + 1, row + 1) for row, col in above.nonzero().tolist()]
    for colour, strength, width in OUTLINE:
        drawn, half = Image.new("L", painted.size), max(0.5, width * across / 2)
        pen = ImageDraw.Draw(drawn)
        for left, top, right, bottom in upright + level:
            pen.rectangle((round(left * across - half), round(top * down - half),
                           round(right * across + half) - 1, round(bottom * down + half) - 1),
                          round(255 * strength))  # fmt: skip
        painted.paste(rgb(colour), (0, 0), drawn)


def _corners(shape: Place, scale: float) -> tuple[int, int, int, int]:
    right, bottom = shape.x + shape.width, shape.y + shape.height
    left, top, right, bottom = (round(edge * scale) for edge in (shape.x, shape.y, right, bottom))
    return left, top, right, bottom


def _pixels(sheet: Sheet, shape: Panel | Heat, size: tuple[int, int]) -> Image.Image:
    if isinstance(shape, Heat):
        drawn = heat_map(shape.values, shape.reach).resize(size, Image.Resampling.NEAREST)
        return Image.blend(drawn, Image.new("RGB", size, "white"), 0.6) if shape.pale else drawn
    image = sheet.scene.images[shape.image]
    if shape.stage is None:
        return image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    return paint(image, shape.stage, size, lines=sheet.scene.lines, pale=shape.pale)


def _fill(pen: Any, box: Box, scale: float) -> None:
    left, top, right, bottom = _corners(box, scale)
    colour = tuple(round(255 + box.opacity * (each - 255)) for each in rgb(box.fill))
    pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), colour, box.outline)


def _write(pen: Any, text: Text, scale: float) -> None:
    runs = [
        ((font if known else _wide_face)(text.size * scale), "".join(part))
        for known, part in groupby(text.text, _KNOWN.__contains__)
    ]
    x, y = text.x * scale, text.y * scale
    if text.anchor == "end":
        x -= sum(face.getlength(run) for face, run in runs)
    # The built-in face has one weight: twice beside each other makes another.
    for step in (0, max(1, round(0.03 * text.size * scale))) if text.bold else (0,):
        at = x + step
        for face, run in runs:
            pen.text((at, y), run, text.colour, face, anchor="ls")
            at += face.getlength(run)


@lru_cache(maxsize=16)
def _wide_face(size: float) -> Any:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size * 0.92)
