"""A sheet as SVG: every picture embedded once, whatever lies on it as shapes, text as text."""

from __future__ import annotations

import base64
import io
from html import escape

from PIL import Image
from torch import Tensor

from .painting import COVER, LINE, heat, pairs
from .sheet import Box, Heat, Panel, Sheet, Text
from .story import StageView, Story

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
_EDGE = 448  # pictures are embedded no larger than this


def written(sheet: Sheet) -> str:
    """The whole SVG file."""
    size = f"{sheet.width:g} {sheet.height:g}"
    scene = sheet.scene
    shown = sorted({shape.picture for shape in sheet.shapes if isinstance(shape, Panel)})
    symbols = [symbol(scene.pictures[at], scene.stories[at], f"p{at}") for at in shown]
    shapes = [_shape(shape, sheet) for shape in sheet.shapes]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
            f'width="{sheet.width:g}" height="{sheet.height:g}" font-family="{FONT}">',
            f"<title>{escape(scene.title)}</title>",
            "<defs>",
            *symbols,
            "</defs>",
            '<rect width="100%" height="100%" fill="#FFFFFF"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def symbol(picture: Image.Image, story: Story, name: str) -> str:
    """The picture under a name to draw it by, in units of patches."""
    rows, cols = story.grid
    return (
        f'<symbol id="{name}" viewBox="0 0 {cols} {rows}" preserveAspectRatio="none">'
        f'<image width="{cols}" height="{rows}" preserveAspectRatio="none" '
        f'href="{data_uri(picture, photo=True)}"/></symbol>'
    )


def overlay(stage: StageView, lines: bool) -> str:
    """What a stage did, in units of patches: a path for each fate, and lines to the partners."""
    found = []
    for fate, (colour, strength) in COVER.items():
        if path := _cells(stage.fate == fate):
            found.append(
                f'<path class="{fate.name.lower()}" d="{path}" fill="{colour}" '
                f'fill-opacity="{strength}"/>'
            )
    rows, cols = stage.fate.shape
    edges = "".join(f"M{at} 0v{rows}" for at in range(1, cols))
    edges += "".join(f"M0 {at}h{cols}" for at in range(1, rows))
    found.append(f'<path d="{edges}" stroke="#FFF" stroke-opacity=".18" stroke-width=".04"/>')
    return "".join(found) + (partners(stage) if lines else "")


def partners(stage: StageView) -> str:
    """A line from each similar patch, ending in a dot on its partner."""
    ends = [(x + 0.5, y + 0.5, u + 0.5, v + 0.5) for (x, y), (u, v) in pairs(stage)]
    if not ends:
        return ""
    path = "".join(f"M{x:g} {y:g}L{u:g} {v:g}" for x, y, u, v in ends)
    dots = "".join(f"M{u:g} {v:g}h0" for *_, u, v in ends)
    return (
        '<g class="lines" fill="none" stroke-linecap="round">'
        f'<path d="{path}" stroke="#FFF" stroke-width=".24"/>'
        f'<path d="{dots}" stroke="#FFF" stroke-width=".44"/>'
        f'<path d="{path}" stroke="{LINE}" stroke-width=".12"/>'
        f'<path d="{dots}" stroke="{LINE}" stroke-width=".32"/></g>'
    )


def data_uri(picture: Image.Image, photo: bool) -> str:
    """The picture itself, so that nothing outside the file is needed."""
    buffer = io.BytesIO()
    if photo:
        held = picture.convert("RGB")
        held.thumbnail((_EDGE, _EDGE))
        held.save(buffer, "JPEG", quality=90, subsampling=0, optimize=True)
    else:
        picture.save(buffer, "PNG", optimize=True)
    kind = "jpeg" if photo else "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _cells(chosen: Tensor) -> str:
    """The chosen patches as one path; neighbours in a row are one rectangle."""
    path = []
    for y, row in enumerate(chosen.tolist()):
        x = 0
        while x < len(row):
            start = x
            while x < len(row) and row[x]:
                x += 1
            if x > start:
                path.append(f"M{start} {y}h{x - start}v1h{start - x}z")
            x += 1
    return "".join(path)


def _shape(shape: Text | Box | Panel | Heat, sheet: Sheet) -> str:
    if isinstance(shape, Text):
        weight = ' font-weight="600"' if shape.bold else ""
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        return (
            f'<text x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size:g}"{weight}{anchor} '
            f'fill="{shape.colour}">{escape(shape.text)}</text>'
        )
    place = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
    if isinstance(shape, Box):
        outline = f' stroke="{shape.outline}"' if shape.outline else ""
        return f'<rect {place} fill="{shape.fill}" fill-opacity="{shape.opacity:g}"{outline}/>'
    if isinstance(shape, Heat):
        pale = ' opacity="0.4"' if shape.pale else ""
        uri = data_uri(heat(shape.values, shape.reach), photo=False)
        return (
            f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" '
            f'href="{uri}"{pale}/>'
        )
    return _panel(shape, sheet, place)


def _panel(panel: Panel, sheet: Sheet, place: str) -> str:
    picture = f'<use href="#p{panel.picture}" {place}/>'
    if panel.stage is None:
        return picture
    rows, cols = panel.stage.fate.shape
    scale = f"scale({panel.width / cols:.6g} {panel.height / rows:.6g})"
    covering = overlay(panel.stage, sheet.scene.lines)
    return f'{picture}<g transform="translate({panel.x:g} {panel.y:g}) {scale}">{covering}</g>'
