"""Accuracy against cost or speed, a line for each method; of many lines, few stand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure

from ..methods import DEFAULT
from .emphasis import GREY, choose_named, others_key, write_names
from .figure_files import single_axis, style_of

LOWEST = -20.0  # slicing falls so deep that all others would shrink into one line


class Point(NamedTuple):
    """One measured way to run a model."""

    name: str
    x: float  # GMACs, or images per second
    change: float  # in top-1, points
    error: float


def find_named(points: Sequence[Point], by: Literal["gmacs", "speed"]) -> list[str]:
    """The methods to name: the default one, and the best at the lowest cost that all reach.

    >>> find_named([Point("tome", 1.0, -0.5, 0.1), Point("ats", 1.0, -0.7, 0.1)], "gmacs")
    ['tome', 'ats']
    """
    sign = 1 if by == "gmacs" else -1  # fast is cheap
    names = dict.fromkeys(point.name for point in points)
    return choose_named(
        {
            name: sorted((sign * point.x, point.change) for point in points if point.name == name)
            for name in names
        }
    )


def trade_off_figure(
    points: Sequence[Point],
    unpruned: float,
    by: Literal["gmacs", "speed"],
    title: str,
    named: Sequence[str] | None = None,
) -> Figure:
    """Accuracy against cost or against measured speed, a line for each method, with error bars.

    `unpruned` is where the unpruned model stands. Lines in `named` have colour and a name, the
    others are grey; None: those of `find_named`.
    """
    figure, axis = single_axis(title)
    lines = {name: sorted(point[1:] for point in points if point.name == name)
             for name in dict.fromkeys(point.name for point in points)}  # fmt: skip
    named = find_named(points, by) if named is None else named
    others = [name for name in lines if name not in named]
    for name in others:
        across, change, _ = zip(*lines[name], strict=True)
        axis.plot(across, change, color=GREY, lw=1, zorder=1.5)
    for number, name in enumerate(named):
        across, change, error = zip(*lines[name], strict=True)
        width = 2.4 if name == DEFAULT else 1.6
        axis.errorbar(across, change, error, label=name, lw=width, ms=5, capsize=2, zorder=3,
                      **style_of(number))  # fmt: skip
    axis.axhline(0, color="#444444", lw=1, ls=":")
    axis.plot([unpruned], [0], "k*", ms=11, label="unpruned", zorder=3)
    labels = {"gmacs": "GMACs, with patch embedding and scoring", "speed": "images per second"}
    axis.set_xlabel(labels[by])
    axis.set_ylabel("change in accuracy, points (paired standard error)")
    axis.set_ylim(bottom=max(LOWEST, axis.get_ylim()[0]))
    _write_names(axis, {name: lines[name] for name in named}, by)
    handles = axis.get_legend_handles_labels()[0] + ([others_key(others)] if others else [])
    axis.legend(handles=handles, fontsize=8, ncols=1 if others else 2)
    return figure


def _write_names(axis: Any, lines: dict[str, list[Any]], by: Literal["gmacs", "speed"]) -> None:
    """At the cheap end of each line, for which the axis is made a little wider."""
    low, high = axis.get_xlim()
    axis.set_xlim(*((low - 0.16 * (high - low), high) if by == "gmacs"
                    else (low, high + 0.16 * (high - low))))  # fmt: skip
    ends = {}
    for number, (name, line) in enumerate(lines.items()):
        seen = [each for each in line if each[1] >= axis.get_ylim()[0]] or line
        x, y, _ = seen[0] if by == "gmacs" else seen[-1]
        ends[name] = (x, y, style_of(number)["color"])
    write_names(axis, ends, "left" if by == "gmacs" else "right")
