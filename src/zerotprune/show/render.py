"""Draw a scene into a file, in the way that the file's ending says."""

from __future__ import annotations

from pathlib import Path

from ..files import check_writable, replacing
from .film import save_film
from .html import write_html
from .layout import lay_out_grid, lay_out_strips
from .raster import rasterize
from .scene import Scene
from .svg import write_svg

STILL, MOVING, PAGE = (".png", ".svg"), (".gif", ".webp"), (".html",)
ENDINGS = STILL + MOVING + PAGE


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
            save_film(scene, temporary, ending.lstrip("."))
        elif ending in PAGE:
            temporary.write_text(write_html(scene), encoding="utf-8")
        elif ending == ".svg":
            temporary.write_text(write_svg(lay_out(scene)), encoding="utf-8")
        else:
            rasterize(lay_out(scene)).save(temporary, "PNG")
