"""Draw a scene into a file, in the way that the file's ending says."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from ..files import check_writable, replacing
from .html import write_html
from .layout import lay_out_frame, lay_out_grid, lay_out_strips
from .raster import rasterize
from .scene import Scene
from .svg import write_svg

STILL, MOVING, PAGE = (".png", ".svg"), (".gif", ".webp"), (".html",)
ENDINGS = STILL + MOVING + PAGE
#: 64 levels of a channel are as good to the eye as 256, and make a PNG a third smaller
COARSER = [round(round(level / 255 * 63) / 63 * 255) for level in range(256)]
FIRST, EACH, LAST = 1400, 1100, 3500  # milliseconds that a film's frames stand


def check_drawable(path: Path, *, heads: bool = False, tiles: bool = False) -> None:
    """Say at once, before any work is done, that such a file could not be drawn."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"cannot draw {path.name}: the ending must be one of {', '.join(ENDINGS)}")
    if heads and (ending in MOVING or tiles):
        raise ValueError(f"heads are drawn into {', '.join(STILL + PAGE)} without a grid")
    if tiles and ending not in STILL:
        raise ValueError(f"a grid is drawn into {' or '.join(STILL)}, got {path.name}")
    check_writable(path)


def draw(scene: Scene, path: Path, *, tiles: bool = False) -> None:
    """Write the file, whole or not at all. With `tiles`, a grid of what was left in the end."""
    ending = path.suffix.lower()
    lay_out = lay_out_grid if tiles else lay_out_strips
    with replacing(path) as temporary:
        if ending in MOVING:
            _save_film(scene, temporary, ending)
        elif ending in PAGE:
            temporary.write_text(write_html(scene), encoding="utf-8")
        elif ending == ".svg":
            temporary.write_text(write_svg(lay_out(scene)), encoding="utf-8")
        else:
            rasterize(lay_out(scene)).point(COARSER * 3).save(temporary, "PNG", optimize=True)


def _save_film(scene: Scene, path: Path, ending: str) -> None:
    """One frame for each stage, over and over."""
    frames = [rasterize(lay_out_frame(scene, step)) for step in range(scene.steps + 1)]
    lasting = [FIRST, *[EACH] * (len(frames) - 2), LAST][: len(frames)]
    if ending == ".gif":
        # Each area in its nearest of 256 colours: dithering would make flat areas crawl.
        median, plain = Image.Quantize.MEDIANCUT, Image.Dither.NONE
        frames = [frame.quantize(256, median, dither=plain) for frame in frames]
    how = {"optimize": True, "disposal": 1} if ending == ".gif" else {"quality": 88, "method": 4}
    frames[0].save(path, ending[1:], append_images=frames[1:], duration=lasting, loop=0,
                   save_all=True, **how)  # fmt: skip
