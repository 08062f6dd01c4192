"""What all plots share: empty figures, colors, names at lines, and the files they go to."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ..methods import DEFAULT
from ..safety.files import check_writable, printable, replacing
from ..show.figure import missing_glyphs_allowed

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colors suit every kind of color vision.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX<>h"
GRAY = "#BBBBBB"  # of lines without a name
NAMED = 3  # lines with a name and a color, where there are more than FEW
FEW = 5

Line = Sequence[tuple[float, float]]  # (x, y), by rising x


def new_figure(width: float = 7.2, height: float = 4.8) -> Figure:
    """Return an empty figure that needs no screen."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def single_axis(title: str) -> tuple[Figure, Any]:
    """Return a figure of one panel with a grid."""
    figure = new_figure()
    axis = figure.subplots()
    axis.set_title(literal(title), fontsize=11)
    axis.grid(alpha=0.25)
    return figure, axis


def literal(text: str) -> str:
    """Escape a title or a label with names that users gave: between `$`, matplotlib would set
    mathematics.

    >>> literal("a$b$")
    'a\\\\$b\\\\$'
    """
    return printable(text).replace("$", r"\$")


def style_of(number: int) -> dict[str, str]:
    """Return color and marker of a line by its number; they repeat after the last."""
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}


def choose_named(
    lines: Mapping[str, Line], *, count: int = NAMED, first: str = DEFAULT
) -> list[str]:
    """Choose the lines to name: `first`, then the highest at the lowest x that all reach.

    If there are few lines, all are named, in their order.

    >>> lines = {name: [(1.0, -rank), (2.0, 0.0)] for rank, name in enumerate("abcdef")}
    >>> choose_named(lines, first="d")
    ['d', 'a', 'b']
    """
    if len(lines) <= FEW:
        return list(lines)
    common = max(line[0][0] for line in lines.values())

    def value(name: str) -> float:
        x, y = zip(*lines[name], strict=True)
        return float(np.interp(common, x, y))

    best = sorted((name for name in lines if name != first), key=value, reverse=True)
    return [*([first] if first in lines else []), *best][:count]


def write_names(axis: Any, ends: Mapping[str, tuple[float, float, str]], side: str) -> None:
    """Write each name beside the end of its line, in the line's color, without overlap.

    Args:
        axis: The axis of the lines.
        ends: x, y and color by name.
        side: Where the text goes, "left" or "right" of its end.
    """
    step = 0.05 * (axis.get_ylim()[1] - axis.get_ylim()[0])
    lowest = axis.get_ylim()[0] + step / 2
    for name, (x, y, color) in sorted(ends.items(), key=lambda end: end[1][1]):
        y = max(y, lowest)
        lowest = y + step
        axis.annotate(
            literal(name), (x, y), (-7 if side == "left" else 7, 0), textcoords="offset points",
            va="center", ha="right" if side == "left" else "left", fontsize=9, color=color,
            fontweight="bold", path_effects=[withStroke(linewidth=3, foreground="white")], zorder=4,
        )  # fmt: skip


def others_key(names: Sequence[str]) -> Line2D:
    """Return one legend entry for all gray lines, with their names."""
    text = textwrap.fill(literal(f"others: {', '.join(names)}"), 44)
    return Line2D([], [], color=GRAY, lw=1.2, label=text)


def check_figure_file(path: Path) -> None:
    """Raise ValueError, before any work is done, if no figure can be written there."""
    if path.suffix not in FIGURE_SUFFIXES:
        suffixes = ", ".join(FIGURE_SUFFIXES)
        raise ValueError(f"cannot draw {path.name}: the ending must be one of {suffixes}")
    check_writable(path)


def save(figure: Figure, path: Path) -> None:
    """Write the figure, whole or not at all."""
    with replacing(path) as temporary, missing_glyphs_allowed():
        figure.savefig(temporary, dpi=150, format=path.suffix.lstrip("."))
