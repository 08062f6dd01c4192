"""An animation, stage by stage: GIF or WebP."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from .layout import lay_out_frame
from .raster import rasterize
from .scene import Scene

FIRST, EACH, LAST = 1400, 1100, 3500  # milliseconds


def save_film(scene: Scene, path: Path, kind: str) -> None:
    """Write one frame for each stage, over and over."""
    frames = [rasterize(lay_out_frame(scene, step)) for step in range(scene.steps + 1)]
    lasting = [FIRST, *[EACH] * (len(frames) - 2), LAST][: len(frames)]
    first, *others = [_quantize(each) for each in frames] if kind == "gif" else frames
    given = {"append_images": others, "duration": lasting, "loop": 0, "save_all": True}
    if kind == "gif":
        first.save(path, "GIF", optimize=True, disposal=1, **given)
    else:
        first.save(path, "WEBP", quality=88, method=4, **given)


def _quantize(frame: Image.Image) -> Image.Image:
    """256 colours, each area in its nearest one: dithering would make flat areas crawl."""
    return frame.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
