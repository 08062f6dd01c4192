"""Accuracy against cost or speed, a line for each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from matplotlib.figure import Figure

from ..methods import DEFAULT
from .figure_files import COLOURS, single_axis, style_of


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
    figure, axis = single_axis(title)
    names = list(dict.fromkeys(point.name for point in points))
    for number, name in enumerate(names):
        line = sorted((point.x, point.change, point.error) for point in points
                      if point.name == name)  # fmt: skip
        across, change, error = zip(*line, strict=True)
        width = 2.4 if name == DEFAULT else 1.2
        dashes = "-" if number < len(COLOURS) else "--"
        axis.errorbar(across, change, error, label=name, ls=dashes, lw=width, ms=5, capsize=2,
                      **style_of(number))  # fmt: skip
    axis.axhline(0, color="#444444", lw=1, ls=":")
    axis.plot([unpruned], [0], "k*", ms=11, label="unpruned")
    labels = {"gmacs": "GMACs, with patch embedding and scoring", "speed": "images per second"}
    axis.set_xlabel(labels[by])
    axis.set_ylabel("change in accuracy, points (paired standard error)")
    # Slicing falls so deep that all others would shrink into one line.
    axis.set_ylim(bottom=max(-20.0, axis.get_ylim()[0]))
    axis.legend(fontsize=8, ncols=2)
    return figure
