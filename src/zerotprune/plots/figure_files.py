"""Files that figures are written to, and the colours that all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..files import check_writable, replacing

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours: they stay apart for every kind of colour vision.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX<>h"


def new_figure(width: float = 7.2, height: float = 4.8) -> Figure:
    """An empty one that needs no screen."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_of(number: int) -> dict[str, str]:
    """Colour and marker of the line with this number; beyond the last they begin anew."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def single_axis(title: str) -> tuple[Figure, Any]:
    """A figure of one panel with a grid."""
    figure = new_figure()
    axis = figure.subplots()
    axis.set_title(title, fontsize=11)
    axis.grid(alpha=0.25)
    return figure, axis


def check_figure_file(path: Path) -> None:
    """Say at once, before any work is done, that a figure could not be written there."""
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot draw {path.name}: the ending must be one of {', '.join(FORMATS)}")
    check_writable(path)


def save(figure: Figure, path: Path) -> None:
    """Write the figure, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.lstrip("."))
