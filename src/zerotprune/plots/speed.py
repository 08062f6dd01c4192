"""Speed-up against batch size, a panel for each precision and mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ..methods import DEFAULT
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
    says which unpruned model is 1.
    """
    precisions = list(dict.fromkeys(pace.precision for pace in paces))
    modes = list(dict.fromkeys(pace.mode for pace in paces))
    names = list(dict.fromkeys(pace.name for pace in paces))
    speedups = [pace.speedup for pace in paces]
    low, high = 0.95 * min(speedups), 1.05 * max(speedups)
    ticks = [tick for tick in SPEEDUPS if low <= tick <= high]
    figure = new_figure(max(5.0, 3.6 * len(modes)), 3.4 * len(precisions) + 0.8)
    axes = figure.subplots(len(precisions), len(modes), squeeze=False, sharex=True, sharey=True)
    for row, precision in enumerate(precisions):
        for column, mode in enumerate(modes):
            axis = axes[row][column]
            _speed_panel(axis, [pace for pace in paces if pace[1:3] == (mode, precision)],
                         names, limit)  # fmt: skip
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
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _speed_panel(axis: Any, paces: list[Pace], names: list[str], limit: str) -> None:
    axis.axhline(1, color="#444444", lw=1, ls=":")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.grid(alpha=0.25)
    others = [name for name in names if name not in (limit, "unpruned")]
    for name in names:
        line = sorted((pace.batch, pace.speedup) for pace in paces if pace.name == name)
        if not line:
            continue
        style: dict[str, Any] = {"color": "#999999", "marker": "*", "label": name}
        if name == limit:
            style = {"color": "#000000", "ls": "--", "marker": "", "label": f"limit ({limit})"}
        elif name in others:
            style |= style_of(others.index(name))
        width = 2.4 if name == DEFAULT else 1.4
        axis.plot(*zip(*line, strict=True), lw=width, ms=5, **style)
