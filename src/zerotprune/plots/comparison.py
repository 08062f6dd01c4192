"""Compare methods: accuracy against cost or speed, and speed against batch size."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure

from ..methods import DEFAULT
from .figures import (
    FEW,
    GRAY,
    NAMED,
    choose_named,
    literal,
    new_figure,
    others_key,
    single_axis,
    style_of,
    write_names,
)

LOWEST = -20.0  # points: slicing falls so deep that all other lines would shrink into one
SPEEDUPS = (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8)  # possible ticks
GMACS = "GMACs, with patch embedding and scoring"
SPEED = "times as fast as the unpruned model, measured"


class Point(NamedTuple):
    """One measured way to run a model."""

    name: str
    x: float  # GMACs, or times the unpruned model's speed
    change: float  # in top-1, points
    error: float


def find_named(points: Sequence[Point], by: Literal["gmacs", "speed"]) -> list[str]:
    """Choose the methods to name: the default, and the best at the lowest cost that all reach.

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
    """Plot accuracy against cost or measured speed, a line with error bars for each method.

    Args:
        points: All measurements.
        unpruned: x of the unpruned model.
        by: The quantity on the x axis.
        title: The title of the figure.
        named: Lines with color and name; the others are gray. None: those of `find_named`.
    """
    figure, axis = single_axis(title)
    lines = {name: sorted(point[1:] for point in points if point.name == name)
             for name in dict.fromkeys(point.name for point in points)}  # fmt: skip
    named = find_named(points, by) if named is None else named
    others = [name for name in lines if name not in named]
    for name in others:
        x, change, _ = zip(*lines[name], strict=True)
        axis.plot(x, change, color=GRAY, lw=1, zorder=1.5)
    for number, name in enumerate(named):
        x, change, error = zip(*lines[name], strict=True)
        width = 2.4 if name == DEFAULT else 1.6
        axis.errorbar(x, change, error, label=literal(name), lw=width, ms=5, capsize=2, zorder=3,
                      **style_of(number))  # fmt: skip
    axis.axhline(0, color="#444444", lw=1, ls=":")
    axis.plot([unpruned], [0], "k*", ms=11, label="unpruned", zorder=3)
    axis.set_xlabel(GMACS if by == "gmacs" else SPEED)
    axis.set_ylabel("change in accuracy, points (paired standard error)")
    axis.set_ylim(bottom=max(LOWEST, axis.get_ylim()[0]))
    _name_cheap_ends(axis, {name: lines[name] for name in named}, by)
    handles = axis.get_legend_handles_labels()[0] + ([others_key(others)] if others else [])
    axis.legend(handles=handles, fontsize=8, ncols=1 if others else 2)
    return figure


def _name_cheap_ends(axis: Any, lines: dict[str, list[Any]], by: Literal["gmacs", "speed"]) -> None:
    """Write each name at the cheap end of its line, and make the axis wider for it."""
    low, high = axis.get_xlim()
    room = 0.16 * (high - low)
    axis.set_xlim((low - room, high) if by == "gmacs" else (low, high + room))
    ends = {}
    for number, (name, line) in enumerate(lines.items()):
        visible = [point for point in line if point[1] >= axis.get_ylim()[0]] or line
        x, y, _ = visible[0] if by == "gmacs" else visible[-1]
        ends[name] = (x, y, style_of(number)["color"])
    write_names(axis, ends, "left" if by == "gmacs" else "right")


class Pace(NamedTuple):
    """One measured case of a speed measurement."""

    name: str
    mode: str
    precision: str
    batch: int
    speedup: float  # over the compiled unpruned model


def speed_figure(paces: Sequence[Pace], limit: str, base: str, title: str) -> Figure:
    """Plot speedup against batch size, a panel for each precision and mode.

    Args:
        paces: All measurements.
        limit: The contender that no other can be faster than; its line is dashed.
        base: The unpruned model whose speed is 1.
        title: The title of the figure.
    """
    precisions = list(dict.fromkeys(pace.precision for pace in paces))
    modes = list(dict.fromkeys(pace.mode for pace in paces))
    names = list(dict.fromkeys(pace.name for pace in paces))
    named = choose_fast(paces, limit)
    speedups = [pace.speedup for pace in paces]
    low, high = 0.95 * min(speedups), 1.05 * max(speedups)
    ticks = [tick for tick in SPEEDUPS if low <= tick <= high]
    figure = new_figure(max(5.0, 3.6 * len(modes)), 3.4 * len(precisions) + 0.8)
    axes = figure.subplots(len(precisions), len(modes), squeeze=False, sharex=True, sharey=True)
    for row, precision in enumerate(precisions):
        for column, mode in enumerate(modes):
            axis = axes[row][column]
            _speed_panel(axis, [pace for pace in paces if pace[1:3] == (mode, precision)],
                         named, limit)  # fmt: skip
            axis.set_title(f"{mode}, {precision}", fontsize=10)
            axis.set_xticks(batches := sorted({pace.batch for pace in paces}), map(str, batches))
            axis.set_yticks(ticks, map("{:g}×".format, ticks))
            axis.minorticks_off()
    for axis in axes[-1]:
        axis.set_xlabel("batch size")
    figure.supylabel(f"speedup over {base}", fontsize=10)
    figure.suptitle(literal(title), fontsize=11)
    handles, labels = max((axis.get_legend_handles_labels() for axis in axes.flat),
                          key=lambda legend: len(legend[1]))  # fmt: skip
    if others := [name for name in names if name not in (*named, limit, "unpruned")]:
        key = others_key(others)
        handles, labels = [*handles, key], [*labels, str(key.get_label())]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def choose_fast(paces: Sequence[Pace], limit: str) -> list[str]:
    """Choose the methods to name: the default, then the fastest by geometric mean.

    If there are few methods, all are named.

    >>> choose_fast([Pace(name, "eager", "float32", 1, 2.0) for name in ("tome", "limit")], "limit")
    ['tome']
    """
    speedups: dict[str, list[float]] = {}
    for pace in paces:
        if pace.name not in (limit, "unpruned"):
            speedups.setdefault(pace.name, []).append(pace.speedup)
    if len(speedups) <= FEW:
        return list(speedups)
    fast = sorted(speedups, key=lambda name: (name == DEFAULT, geometric_mean(speedups[name])))
    return fast[::-1][:NAMED]


def _speed_panel(axis: Any, paces: list[Pace], named: list[str], limit: str) -> None:
    axis.axhline(1, color="#444444", lw=1, ls=":")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.grid(alpha=0.25)
    for name in dict.fromkeys(pace.name for pace in paces):
        line = sorted((pace.batch, pace.speedup) for pace in paces if pace.name == name)
        style: dict[str, Any] = {"color": GRAY, "zorder": 1.5}
        if name == "unpruned":
            style = {"color": "#666666", "marker": "*", "label": name}
        elif name == limit:
            style = {"color": "#000000", "ls": "--", "marker": "", "label": f"limit ({limit})"}
        elif name in named:
            style = {"label": literal(name), "zorder": 3} | style_of(named.index(name))
        width = 2.4 if name == DEFAULT else 1.4
        axis.plot(*zip(*line, strict=True), lw=width, ms=5, **style)
