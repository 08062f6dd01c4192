"""What a stage did to the patches, as SVG to lay over the image. A unit is a patch."""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

from .groups import find_borders, find_shared
from .palette import COVER, EDGE, EDGE_STRENGTH, OUTLINE, PALE_COVER, PARTNERS, TINT
from .story import StageView


def overlay(stage: StageView, *, lines: bool, pale: bool = False) -> str:
    """A path for each mark, and for each group of merged patches with an outline; lines between
    the patches, and with `lines` others to the partners. `pale`: what is left stands out."""
    rows, cols = stage.fate.shape
    edges = "".join(f"M{at} 0v{rows}" for at in range(1, cols))
    edges += "".join(f"M0 {at}h{cols}" for at in range(1, rows))
    covers = "".join(
        f'<path class="{mark}" d="{path}" fill="{colour}" fill-opacity="{strength}"/>'
        for mark, (colour, strength) in (PALE_COVER if pale else COVER).items()
        if (path := _outline(stage.marked(mark)))
    )
    grid = (
        f'<path d="{edges}" stroke="#FFF" stroke-opacity="{EDGE_STRENGTH}" stroke-width="{EDGE}"/>'
    )
    return covers + grid + _groups(stage) + (_partner_lines(stage) if lines else "")


def _outline(marked: Tensor) -> str:
    """One path around the marked patches; neighbours in a row are one rectangle."""
    path = ""
    for y, row in enumerate(marked.tolist()):
        for inside, run in groupby(range(len(row)), row.__getitem__):
            if inside:
                start, *others = run
                path += f"M{start} {y}h{1 + len(others)}v1h-{1 + len(others)}z"
    return path


def _groups(stage: StageView) -> str:
    """Every group of merged patches in its mean colour, and an outline where it ends."""
    if stage.token is None or stage.tint is None:
        return ""
    shared, drawn = find_shared(stage.token), ""
    for token in stage.token[shared].unique().tolist():
        members = stage.token == token
        red, green, blue = (255 * stage.tint[members][0]).round().int().tolist()
        fill = f'fill="#{red:02X}{green:02X}{blue:02X}" fill-opacity="{TINT}"'
        drawn += f'<path class="merged" d="{_outline(members)}" {fill}/>'
    beside, above = find_borders(stage.token)
    ends = "".join(f"M{col + 1} {row}v1" for row, col in beside.nonzero().tolist())
    ends += "".join(f"M{col} {row + 1}h1" for row, col in above.nonzero().tolist())
    lines = "".join(
        f'<path d="{ends}" stroke="{colour}" stroke-opacity="{strength}" stroke-width="{width}"/>'
        for colour, strength, width in OUTLINE
    )
    return f'{drawn}<g class="outline" fill="none" stroke-linecap="square">{lines}</g>'


def _partner_lines(stage: StageView) -> str:
    """From each similar patch, ending in a dot on its partner; white under the colour."""
    ends = [(x + 0.5, y + 0.5, u + 0.5, v + 0.5) for (x, y), (u, v) in stage.pairs()]
    if not ends:
        return ""
    lines = "".join(f"M{x} {y}L{u} {v}" for x, y, u, v in ends)
    dots = "".join(f"M{u} {v}h0" for *_, u, v in ends)
    drawn = "".join(
        f'<path d="{path}" stroke="{colour}" stroke-width="{width}"/>'
        for colour, *widths in PARTNERS
        for path, width in zip((lines, dots), widths, strict=True)
    )
    return f'<g class="partners" fill="none" stroke-linecap="round">{drawn}</g>'
