"""What a stage did to the patches, as SVG to lay over the image. A unit is a patch."""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

from .palette import COVER, EDGE, EDGE_STRENGTH, PARTNERS
from .story import StageView


def overlay(stage: StageView, *, lines: bool) -> str:
    """A path for each fate, lines between the patches, and with `lines` others to the partners."""
    rows, cols = stage.fate.shape
    edges = "".join(f"M{at} 0v{rows}" for at in range(1, cols))
    edges += "".join(f"M0 {at}h{cols}" for at in range(1, rows))
    covers = "".join(
        f'<path class="{fate.name.lower()}" d="{path}" fill="{colour}" fill-opacity="{strength}"/>'
        for fate, (colour, strength) in COVER.items()
        if (path := _outline(stage.fate == fate))
    )
    grid = (
        f'<path d="{edges}" stroke="#FFF" stroke-opacity="{EDGE_STRENGTH}" stroke-width="{EDGE}"/>'
    )
    return covers + grid + (_partner_lines(stage) if lines else "")


def _outline(marked: Tensor) -> str:
    """One path around the marked patches; neighbours in a row are one rectangle."""
    path = ""
    for y, row in enumerate(marked.tolist()):
        for inside, run in groupby(range(len(row)), row.__getitem__):
            if inside:
                start, *others = run
                path += f"M{start} {y}h{1 + len(others)}v1h-{1 + len(others)}z"
    return path


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
