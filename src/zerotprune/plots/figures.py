"""Figures: accuracy against cost and speed; speed-ups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..files import check_writable, replacing

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours: they stay apart for every kind of colour vision.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX<>h"
SPEEDUPS = (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8)  # where a tick may stand


class Point(NamedTuple):
    """One measured way to run a model."""

    name: str
    place: float  # GMACs, or images per second
    change: float  # in top-1, points
    error: float


def trade_off_figure(
    points: Sequence[Point], unpruned: float, by: Literal["gmacs", "speed"], title: str
) -> Figure:
    """Accuracy against cost or against measured speed, a line for each method, with error bars.

    `unpruned` is the place of the unpruned model.
    """
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    names = list(dict.fromkeys(point.name for point in points))
    for number, name in enumerate(names):
        line = sorted((point.place, point.change, point.error) for point in points
                      if point.name == name)  # fmt: skip
        across, change, error = zip(*line, strict=True)
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "ls": "-" if number < len(COLOURS) else "--",
        }
        width = 2.4 if name == "zero-tprune" else 1.2
        axis.errorbar(across, change, error, label=name, lw=width, ms=5, capsize=2, **style)
    axis.axhline(0, color="#444444", lw=1, ls=":")
    axis.plot([unpruned], [0], "k*", ms=11, label="unpruned")
    labels = {"gmacs": "GMACs, with patch embedding and scoring", "speed": "images per second"}
    axis.set_xlabel(labels[by])
    axis.set_ylabel("change in accuracy, points (paired standard error)")
    # Slicing falls so deep that all others would shrink into one line.
    axis.set_ylim(bottom=max(-20.0, axis.get_ylim()[0]))
    axis.set_title(title, fontsize=11)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, ncols=2)
    return figure


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
    size = (max(5.0, 3.6 * len(modes)), 3.4 * len(precisions) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
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
                          key=lambda found: len(found[1]))  # fmt: skip
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
            number = others.index(name)
            style["color"] = COLOURS[number % len(COLOURS)]
            style["marker"] = MARKERS[number % len(MARKERS)]
        width = 2.4 if name == "zero-tprune" else 1.4
        axis.plot(*zip(*line, strict=True), lw=width, ms=5, **style)


def check_target(path: Path) -> None:
    """Say at once, before any work is done, that a figure could not be written there."""
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot draw {path.name}: the ending must be one of {', '.join(FORMATS)}")
    check_writable(path)


def save(figure: Figure, path: Path) -> None:
    """Write the figure, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.lstrip("."))
