"""Accuracy against cost or speed, a line for each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure

from ..methods import DEFAULT
from .figure_files import COLOURS, MARKERS, new_figure


class Point(NamedTuple):
    """One measured way to run a model."""

    name: str
    x: float  # GMACs, or images per second
    change: float  # in top-1, points
    error: float


def trade_off_figure(
    points: Sequence[Point], unpruned: float, by: Literal["gmacs", "speed"], title: str
) -> Figure:
    """Accuracy against cost or against measured speed, a line for each method, with error bars.

    `unpruned` is where the unpruned model stands.
    """
    figure = new_figure()
    axis = figure.subplots()
    names = list(dict.fromkeys(point.name for point in points))
    for number, name in enumerate(names):
        line = sorted((point.x, point.change, point.error) for point in points
                      if point.name == name)  # fmt: skip
        across, change, error = zip(*line, strict=True)
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "ls": "-" if number < len(COLOURS) else "--",
        }
        width = 2.4 if name == DEFAULT else 1.2
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
