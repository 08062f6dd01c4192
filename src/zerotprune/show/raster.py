"""A sheet as pixels."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from .painting import fitted, heat, paint, rgb
from .sheet import Box, Heat, Panel, Sheet, Text, font

SCALE = 1.5  # sharp on most screens, and small enough to send
#: What the built-in face can draw; all else comes from one that has more.
_KNOWN = frozenset(map(chr, range(32, 127))) | set("·±…")


def drawn(sheet: Sheet, scale: float = SCALE) -> Image.Image:
    """The sheet on white, `scale` times as large as on a screen."""
    image = Image.new("RGB", (round(sheet.width * scale), round(sheet.height * scale)), "white")
    draw = ImageDraw.Draw(image)
    for shape in sheet.shapes:
        if isinstance(shape, Text):
            _write(draw, shape, scale)
        elif isinstance(shape, Box):
            _fill(draw, shape, scale)
        else:
            corners = _corners(shape, scale)
            size = (corners[2] - corners[0], corners[3] - corners[1])
            image.paste(_pixels(sheet, shape, size), corners[:2])
    return image


def _corners(shape: Box | Panel | Heat, scale: float) -> tuple[int, int, int, int]:
    right, bottom = shape.x + shape.width, shape.y + shape.height
    left, top, right, bottom = (round(edge * scale) for edge in (shape.x, shape.y, right, bottom))
    return left, top, right, bottom


def _pixels(sheet: Sheet, shape: Panel | Heat, size: tuple[int, int]) -> Image.Image:
    if isinstance(shape, Heat):
        found = heat(shape.values, shape.reach).resize(size, Image.Resampling.NEAREST)
        return Image.blend(found, Image.new("RGB", size, "white"), 0.6) if shape.pale else found
    scene = sheet.scene
    picture, grid = scene.pictures[shape.picture], scene.stories[shape.picture].grid
    if shape.stage is None:
        found = fitted(picture, grid, max(size))
    else:
        found = paint(picture, shape.stage, lines=scene.lines, side=max(size))
    return found if found.size == size else found.resize(size, Image.Resampling.LANCZOS)


def _fill(draw: Any, box: Box, scale: float) -> None:
    left, top, right, bottom = _corners(box, scale)
    colour = tuple(round(255 + box.opacity * (each - 255)) for each in rgb(box.fill))
    draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), colour, box.outline)


def _write(draw: Any, text: Text, scale: float) -> None:
    runs = [
        (face := font(text.size * scale) if known else _wide_face(text.size * scale), run,
         face.getlength(run))
        for known, run in ((known, "".join(part))
                           for known, part in groupby(text.text, _KNOWN.__contains__))
    ]  # fmt: skip
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    x, y = text.x * scale - shift * sum(length for *_, length in runs), text.y * scale
    # The built-in face has one weight: twice beside each other makes another.
    for step in (0, max(1, round(0.03 * text.size * scale))) if text.bold else (0,):
        at = x + step
        for face, run, length in runs:
            draw.text((at, y), run, text.colour, face, anchor="ls")
            at += length


@lru_cache(maxsize=16)
def _wide_face(size: float) -> Any:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size * 0.92)
