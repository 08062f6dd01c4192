"""Speed-up against batch size, a panel for each precision and mode; of many lines few stand out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ..methods import DEFAULT
from .emphasis import FEW, GREY, NAMED, others_key
from .figure_files import new_figure, style_of

SPEEDUPS = (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8)  # where a tick may stand


class Pace(NamedTuple):
    """One measured case of a speed measurement."""

    name: str
    mode: str
    precision: str
    batch: int
    speedup: float  # over the compiled unpruned model


def speed_figure(paces: Sequence[Pace], limit: str, base: str, title: str) -> Figure:
    """Speed-up over the unpruned model against batch size: a panel for each precision and mode.

    `limit` names the contender that is drawn dashed, as what none of the others can pass; `base`
    says which unpruned model is 1. Of many lines the default method and the fastest have colours.
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
    figure.supylabel(f"speed-up over {base}", fontsize=10)
    figure.suptitle(title, fontsize=11)
    handles, labels = max((each.get_legend_handles_labels() for each in axes.flat),
                          key=lambda legend: len(legend[1]))  # fmt: skip
    if others := [name for name in names if name not in (*named, limit, "unpruned")]:
        key = others_key(others)
        handles, labels = [*handles, key], [*labels, str(key.get_label())]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def choose_fast(paces: Sequence[Pace], limit: str) -> list[str]:
    """The names with a colour: of few lines all; else the default method, then the fastest on
    the geometric mean of their cases.

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
        style: dict[str, Any] = {"color": GREY, "zorder": 1.5}
        if name == "unpruned":
            style = {"color": "#666666", "marker": "*", "label": name}
        elif name == limit:
            style = {"color": "#000000", "ls": "--", "marker": "", "label": f"limit ({limit})"}
        elif name in named:
            style = {"label": name, "zorder": 3} | style_of(named.index(name))
        width = 2.4 if name == DEFAULT else 1.4
        axis.plot(*zip(*line, strict=True), lw=width, ms=5, **style)
