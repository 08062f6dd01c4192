"""Heat maps of what the heads of each stage voted for."""

from __future__ import annotations

import math

from .captions import MARGIN
from .heads import HeadsView
from .palette import INK, OTHER, QUIET
from .pixels import REACH, heat_scale
from .sheet import WORDS, Heat, Sheet, Text, shortened
from .story import Story

EDGE, APART = 66.0, 6.0  # of one head's map, and from the next


def add_head_maps(sheet: Sheet, story: Story, y: float) -> float:
    """A map for each head of every stage, pale where VHF leaves it out; where the rest begins."""
    assert story.heads is not None
    tall, wide = EDGE * story.grid[0] / story.grid[1], sheet.width - 2 * MARGIN
    heads = max(len(view.used) for view in story.heads)
    per_line = min(heads, int((wide + APART) // (EDGE + APART)))
    step = tall + 26
    each, deep = per_line * (EDGE + APART) + 16, 24 + math.ceil(heads / per_line) * step
    across = max(1, int((wide + 16 + APART) // each))
    y = _add_title(sheet, story.heads, y + 16) + 26
    for number, view in enumerate(story.heads):
        row, column = divmod(number, across)
        x, top = MARGIN + column * each, y + row * deep
        words = f"block {view.block}" + ": none in range" * view.none_in_range
        words += ": no filter" * (view.vhf is None)
        sheet.add(Text(x, top, shortened(words, WORDS, each - 22), WORDS, colour=QUIET))
        for head in range(len(view.used)):
            line, place = divmod(head, per_line)
            at = x + place * (EDGE + APART), top + 8 + line * step
            _add_map(sheet, view, head, at, tall)
    return y + math.ceil(len(story.heads) / across) * deep


def _add_title(sheet: Sheet, views: list[HeadsView], y: float) -> float:
    sheet.add(Text(MARGIN, y, "What each head votes for, and the variance of its votes", 15, True))
    add_ramp(sheet, y)
    filtered = [view.vhf for view in views if view.vhf is not None]
    if not filtered:
        return y
    words = "VHF counts the heads with a variance from {:g} to {:g}; where none has one, all."
    sheet.add(Text(MARGIN, y + 21, words.format(*filtered[0]), WORDS, colour=QUIET))
    return y + 21


def _add_map(
    sheet: Sheet, view: HeadsView, head: int, place: tuple[float, float], tall: float
) -> None:
    (x, y), used, variance = place, view.used[head], view.variance[head]
    words = f"{variance:.0f}" if variance >= 10 else f"{variance:.2g}"
    words += "" if used else " out"
    sheet.add(Heat(x, y, EDGE, tall, view.importance[head], not used))
    sheet.add(Text(x, y + tall + 16, words, 13, not used, colour=INK if used else OTHER))


def add_ramp(sheet: Sheet, y: float, reach: float = REACH) -> None:
    """What the colours of heat maps mean, at the right edge."""
    x = sheet.width - MARGIN - 280
    sheet.add(Text(x - 8, y, f"{1 / reach:g} of the mean", 13, anchor="end", colour=QUIET))
    sheet.add(Heat(x, y - 11, 160, 13, heat_scale(reach), reach=reach))
    sheet.add(Text(x + 168, y, f"{reach:g} times the mean", 13, colour=QUIET))
