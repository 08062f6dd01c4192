"""Plot accuracy against cost, off the shelf and after training, for the section on transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from zerotprune.plots.comparison import GMACS
from zerotprune.plots.figures import new_figure, style_of

SHOWN = 14.0  # points below the unpruned model that a panel shows


class Trained(NamedTuple):
    """One method at one cost: mean over the seeds, and its error."""

    method: str
    gmacs: float
    top1: float
    error: float
    trained: bool


def training_figure(
    panels: Mapping[str, tuple[float, float, Sequence[Trained]]], title: str
) -> Figure:
    """Plot accuracy against cost, off the shelf (dashed) and trained (solid).

    Args:
        panels: for each model the GMACs and top-1 of the unpruned one, and its measurements.
        title: of the figure.
    """
    figure = new_figure(4.2 * len(panels) + 1.2, 4.4)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    names = dict.fromkeys(point.method for _, _, points in panels.values() for point in points)
    styles = {name: style_of(number) for number, name in enumerate(names)}
    for axis, (model, (gmacs, top1, points)) in zip(axes, panels.items(), strict=True):
        axis.set_title(model, fontsize=10)
        axis.grid(alpha=0.25)
        for name, style in styles.items():
            for trained in (False, True):
                line = sorted(
                    point[1:4]
                    for point in points
                    if (point.method, point.trained) == (name, trained)
                )
                if line:
                    _draw_training_line(axis, line, style, trained)
        axis.axhline(top1, color="#444444", lw=1, ls=":")
        axis.plot([gmacs], [top1], "k*", ms=11)
        axis.set_xlabel(GMACS)
        _cut_low_points(axis, points, top1)
    axes[0].set_ylabel("top-1, % (mean over the seeds)")
    keys = [Line2D([], [], label=name, **cast(Any, style)) for name, style in styles.items()]
    keys += [Line2D([], [], color="#444444", ls="--", label="off the shelf"),
             Line2D([], [], color="#444444", label="trained"),
             Line2D([], [], color="k", marker="*", ls="", ms=10, label="unpruned")]  # fmt: skip
    figure.legend(handles=keys, fontsize=8, loc="outside right center")
    return figure


def _draw_training_line(axis: Any, line: list[Any], style: dict[str, str], trained: bool) -> None:
    x, y, error = zip(*line, strict=True)
    axis.errorbar(x, y, error, ls="-" if trained else "--", lw=2 if trained else 1.3, ms=5,
                  capsize=2, mfc=style["color"] if trained else "white", **style)  # fmt: skip


def _cut_low_points(axis: Any, points: Sequence[Trained], top1: float) -> None:
    """Leave out points far below, which would flatten all lines, and list them instead."""
    low = [point for point in points if point.top1 < top1 - SHOWN]
    if not low:
        return
    axis.set_ylim(bottom=top1 - SHOWN - 0.5)
    rows = (f"{point.method} {'trained' if point.trained else 'off the shelf'}: {point.top1:.0f} %"
            f" at {point.gmacs:.2g} G"
            for point in sorted(low, key=lambda point: -point.top1))  # fmt: skip
    axis.text(0.98, 0.02, "below:\n" + "\n".join(rows), transform=axis.transAxes, fontsize=7,
              ha="right", va="bottom")  # fmt: skip
