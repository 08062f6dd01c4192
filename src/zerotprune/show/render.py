"""Draw a scene into a file, in the format of its suffix."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageColor

from ..files import check_writable, replacing
from .figure import ACCENT, COVER, OTHER, SAME
from .html import write_html
from .layout import draw_frame, draw_grid, draw_strips
from .scene import Scene

STILL, MOVING, PAGE = (".png", ".svg"), (".gif", ".webp"), (".html",)
ENDINGS = STILL + MOVING + PAGE
#: 64 levels of a channel look like 256 and make a PNG a third smaller
COARSER = [round(round(level / 255 * 63) / 63 * 255) for level in range(256)]
FIRST, NEXT, LAST = 1400, 1100, 3500  # milliseconds that a film shows its frames


def check_drawable(
    path: Path, *, heads: bool = False, tiles: bool = False, panels: int | None = None
) -> None:
    """Raise ValueError, before any work is done, if no such file can be drawn.

    Args:
        path: where the drawing goes; its suffix says the format.
        heads: are heads to be drawn?
        tiles: is it a grid of many images?
        panels: most panels of a strip, if they are limited.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"cannot draw {path.name}: the ending must be one of {', '.join(ENDINGS)}")
    if heads and (ending in MOVING or tiles):
        raise ValueError(f"heads are drawn into {', '.join(STILL + PAGE)} without a grid")
    if tiles and ending not in STILL:
        raise ValueError(f"a grid is drawn into {' or '.join(STILL)}, got {path.name}")
    if panels is not None and (tiles or ending not in STILL):
        raise ValueError(f"panels can be limited in {' and '.join(STILL)} without a grid")
    check_writable(path)


def draw(scene: Scene, path: Path, *, tiles: bool = False) -> None:
    """Write the file, whole or not at all.

    Args:
        scene: what to draw.
        path: where the drawing goes; its suffix says the format.
        tiles: draw a grid of what was left in the end, not strips of stages.
    """
    ending = path.suffix.lower()
    with replacing(path) as temporary:
        if ending in MOVING:
            _save_film(scene, temporary, ending)
        elif ending in PAGE:
            temporary.write_text(write_html(scene), encoding="utf-8")
        else:
            drawing = draw_grid(scene) if tiles else draw_strips(scene)
            if ending == ".svg":
                temporary.write_text(drawing.svg(), encoding="utf-8")
            else:
                drawing.pixels().point(COARSER * 3).save(temporary, "PNG", optimize=True)


def _save_film(scene: Scene, path: Path, ending: str) -> None:
    """Write one frame for each stage, in an endless loop."""
    frames = [draw_frame(scene, step).pixels() for step in range(scene.steps + 1)]
    durations = [FIRST, *[NEXT] * (len(frames) - 2), LAST][: len(frames)]
    options: dict[str, int | bool] = {"quality": 88, "method": 4}
    if ending == ".gif":
        options = {"optimize": True, "disposal": 1}
        frames = [_quantize(frame) for frame in frames]
    frames[0].save(path, ending[1:], append_images=frames[1:], duration=durations, loop=0,
                   save_all=True, **options)  # fmt: skip


def _quantize(frame: Image.Image) -> Image.Image:
    """Reduce a frame to 256 colours, with those of the marks among them."""
    fixed = [colour for colour, _ in COVER.values()] + [ACCENT, SAME, OTHER]
    count = 256 - len(fixed)
    colours = frame.quantize(count, Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(
        colours[: 3 * count] + [level for colour in fixed for level in ImageColor.getrgb(colour)]
    )
    # Dithering would make flat areas crawl from frame to frame.
    return frame.quantize(palette=palette, dither=Image.Dither.NONE)
