"""What the stages did to the patches, as drawings to lay over the picture: sharp at any size."""

from __future__ import annotations

from torch import Tensor

from ..show.painting import COVER, LINE, pairs
from ..show.story import StageView, Story
from ..tracing import Fate

_NAMES = {Fate.SIMILAR: "similar", Fate.UNIMPORTANT: "unimportant", Fate.GONE: "gone"}


def overlay(story: Story) -> str:
    """An SVG with a group for each stage, of which the page shows one at a time.

    A unit of its coordinates is a patch.
    """
    rows, cols = story.grid
    stages = "".join(_stage(stage) for stage in story.stages)
    return (
        f'<svg viewBox="0 0 {cols} {rows}" preserveAspectRatio="none" aria-hidden="true">'
        f'{stages}<path class="edges" d="{_edges(rows, cols)}"/></svg>'
    )


def _stage(stage: StageView) -> str:
    paths = ""
    for fate, (colour, strength) in COVER.items():
        if covered := _squares(stage.fate == fate):
            paths += (
                f'<path class="{_NAMES[fate]}" fill="{colour}" fill-opacity="{strength}" '
                f'd="{covered}"/>'
            )
    return f'<g data-block="{stage.block}">{paths}{_lines(stage)}</g>'


def _squares(where: Tensor) -> str:
    """A path around the marked patches, one piece for each run of neighbours in a row."""
    pieces = []
    for row, marks in enumerate(where.tolist()):
        start = None
        for col, marked in enumerate([*marks, False]):
            if marked and start is None:
                start = col
            elif not marked and start is not None:
                pieces.append(f"M{start} {row}h{col - start}v1h-{col - start}z")
                start = None
    return "".join(pieces)


def _edges(rows: int, cols: int) -> str:
    across = "".join(f"M0 {row}h{cols}" for row in range(1, rows))
    return across + "".join(f"M{col} 0v{rows}" for col in range(1, cols))


def _lines(stage: StageView) -> str:
    """From each similar patch to the partner that made it redundant, with a dot at the partner."""
    drawn, dots = "", ""
    for (x, y), (to_x, to_y) in pairs(stage):
        drawn += f"M{x + 0.5} {y + 0.5}L{to_x + 0.5} {to_y + 0.5}"
        dots += f'<circle cx="{to_x + 0.5}" cy="{to_y + 0.5}" r="0.18" fill="{LINE}"/>'
    if not drawn:
        return ""
    halo = f'<path d="{drawn}" stroke="#FFF" stroke-width="3.5"/>'
    return (
        f'<g class="links">{halo}<path d="{drawn}" stroke="{LINE}" stroke-width="1.8"/>{dots}</g>'
    )
