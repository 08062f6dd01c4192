"""A sheet as SVG: every image embedded once, whatever lies on it as shapes, text as text."""

from __future__ import annotations

from html import escape

from .overlay import overlay
from .pixels import heat_map_url, photo_url
from .scene import Scene
from .sheet import Box, Heat, Panel, Shape, Sheet, Text

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"


def write_svg(sheet: Sheet) -> str:
    """The whole SVG file."""
    width, height = f"{sheet.width:g}", f"{sheet.height:g}"
    shown = sorted({shape.image for shape in sheet.shapes if isinstance(shape, Panel)})
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT}">',
            f"<title>{escape(sheet.scene.title)}</title>",
            "<defs>",
            *(symbol(sheet.scene, number) for number in shown),
            "</defs>",
            '<rect width="100%" height="100%" fill="#FFFFFF"/>',
            *(_write_shape(shape, sheet.scene) for shape in sheet.shapes),
            "</svg>\n",
        ]
    )


def symbol(scene: Scene, number: int) -> str:
    """The image under a name to draw it by, in units of patches."""
    rows, cols = scene.stories[number].grid
    return (
        f'<symbol id="p{number}" viewBox="0 0 {cols} {rows}" preserveAspectRatio="none">'
        f'<image width="{cols}" height="{rows}" preserveAspectRatio="none" '
        f'href="{photo_url(scene.images[number])}"/></symbol>'
    )


def _write_shape(shape: Shape, scene: Scene) -> str:
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
        return (
            f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" '
            f'href="{heat_map_url(shape.values, shape.reach)}"{pale}/>'
        )
    image = f'<use href="#p{shape.image}" {place}/>'
    if shape.stage is None:
        return image
    rows, cols = shape.stage.fate.shape
    scale = f"scale({shape.width / cols:.6g} {shape.height / rows:.6g})"
    over = overlay(shape.stage, lines=scene.lines, pale=shape.pale)
    return f'{image}<g transform="translate({shape.x:g} {shape.y:g}) {scale}">{over}</g>'
