"""Emphasis: which lines of a crowded figure have colour and a name; the others are grey."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ..methods import DEFAULT

NAMED = 3  # lines with a colour, where there are too many for all
FEW = 5  # so many lines can still be told apart
GREY = "#BBBBBB"

Line = Sequence[tuple[float, float]]  # (x, y), by rising x


def choose_named(
    lines: Mapping[str, Line], *, count: int = NAMED, first: str = DEFAULT
) -> list[str]:
    """The names that matter: the method `first`, then the best at the lowest x that all reach.

    Of few lines all matter, in their order.

    >>> lines = {name: [(1.0, -rank), (2.0, 0.0)] for rank, name in enumerate("abcdef")}
    >>> choose_named(lines, first="d")
    ['d', 'a', 'b']
    """
    if len(lines) <= FEW:
        return list(lines)
    common = max(line[0][0] for line in lines.values())

    def value(name: str) -> float:
        across, up = zip(*lines[name], strict=True)
        return float(np.interp(common, across, up))

    best = sorted((name for name in lines if name != first), key=value, reverse=True)
    return [*([first] if first in lines else []), *best][:count]


def write_names(axis: Any, ends: Mapping[str, tuple[float, float, str]], side: str) -> None:
    """Each name beside the end of its line, in the line's colour, none upon another.

    `ends` gives x, y and colour; `side` is where the text goes, "left" or "right" of its end.
    """
    step = 0.05 * (axis.get_ylim()[1] - axis.get_ylim()[0])
    floor = axis.get_ylim()[0] + step / 2
    places: list[float] = []
    for name, (x, y, colour) in sorted(ends.items(), key=lambda end: end[1][1]):
        y = max(y, places[-1] + step if places else floor)
        places.append(y)
        away = (-7, 0) if side == "left" else (7, 0)
        axis.annotate(
            name, (x, y), away, textcoords="offset points", va="center", fontsize=9,
            ha="right" if side == "left" else "left", color=colour, fontweight="bold",
            path_effects=[withStroke(linewidth=3, foreground="white")], zorder=4,
        )  # fmt: skip


def others_key(names: Sequence[str]) -> Line2D:
    """One key for all that is grey, with their names."""
    text = textwrap.fill(f"others: {', '.join(names)}", 44)
    return Line2D([], [], color=GREY, lw=1.2, label=text)
