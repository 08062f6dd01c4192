"""Draw a scene into a file, in the way that the file's ending says."""

from __future__ import annotations

from pathlib import Path

from ..files import check_writable, replacing
from .film import save_film
from .layout import grid, strips
from .page import page
from .raster import drawn
from .sheet import Scene
from .svg import written

STILL, MOVING, PAGE = (".png", ".svg"), (".gif", ".webp"), (".html",)
ENDINGS = STILL + MOVING + PAGE


def check_target(path: Path, *, heads: bool = False, tiles: bool = False) -> None:
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
    sheet = (grid if tiles else strips)(scene) if ending in STILL else None
    with replacing(path) as temporary:
        if ending in MOVING:
            save_film(scene, temporary, ending.lstrip("."))
        elif sheet is None:
            temporary.write_text(page(scene), encoding="utf-8")
        elif ending == ".svg":
            temporary.write_text(written(sheet), encoding="utf-8")
        else:
            drawn(sheet).save(temporary, "PNG")
