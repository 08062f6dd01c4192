"""Accuracy against cost, off the shelf and trained: a colour for each method, a panel a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .figure_files import new_figure, style_of

#: points below the unpruned model that a panel shows: what falls further would flatten all else
SHOWN = 14.0


class Trained(NamedTuple):
    """One method at one cost: the mean over the seeds, and its error."""

    method: str
    gmacs: float
    top1: float
    error: float
    trained: bool


def training_figure(
    panels: Mapping[str, tuple[float, float, Sequence[Trained]]], title: str
) -> Figure:
    """For each model the GMACs and the top-1 of the unpruned one, and what its methods came to.
    Dashed is off the shelf, solid is trained."""
    figure = new_figure(4.2 * len(panels) + 1.2, 4.4)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    names = dict.fromkeys(point.method for _, _, points in panels.values() for point in points)
    colours = {name: style_of(number) for number, name in enumerate(names)}
    for axis, (model, (gmacs, top1, points)) in zip(axes, panels.items(), strict=True):
        axis.set_title(model, fontsize=10)
        axis.grid(alpha=0.25)
        for name, style in colours.items():
            for trained in (False, True):
                line = sorted(p[1:4] for p in points if (p.method, p.trained) == (name, trained))
                if line:
                    _draw(axis, line, style, trained)
        axis.axhline(top1, color="#444444", lw=1, ls=":")
        axis.plot([gmacs], [top1], "k*", ms=11)
        axis.set_xlabel("GMACs, with patch embedding and scoring")
        _cut(axis, points, top1)
    axes[0].set_ylabel("top-1, % (mean over the seeds)")
    keys = [Line2D([], [], label=name, **cast(Any, style)) for name, style in colours.items()]
    keys += [Line2D([], [], color="#444444", ls="--", label="off the shelf"),
             Line2D([], [], color="#444444", label="trained"),
             Line2D([], [], color="k", marker="*", ls="", ms=10, label="unpruned")]  # fmt: skip
    figure.legend(handles=keys, fontsize=8, loc="outside right center")
    return figure


def _cut(axis: Any, points: Sequence[Trained], top1: float) -> None:
    """Leave out what is far below, and say what it is."""
    low = [p for p in points if p.top1 < top1 - SHOWN]
    if not low:
        return
    axis.set_ylim(bottom=top1 - SHOWN - 0.5)
    told = (f"{p.method} {'trained' if p.trained else 'off the shelf'}: {p.top1:.0f} %"
            f" at {p.gmacs:.2g} G" for p in sorted(low, key=lambda p: -p.top1))  # fmt: skip
    axis.text(0.98, 0.02, "below:\n" + "\n".join(told), transform=axis.transAxes, fontsize=7,
              ha="right", va="bottom")  # fmt: skip


def _draw(axis: Any, line: list[Any], style: dict[str, str], trained: bool) -> None:
    across, up, error = zip(*line, strict=True)
    axis.errorbar(across, up, error, ls="-" if trained else "--", lw=2 if trained else 1.3, ms=5,
                  capsize=2, mfc=style["color"] if trained else "white", **style)  # fmt: skip
