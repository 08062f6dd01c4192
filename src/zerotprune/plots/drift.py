"""Plot what pruning does to vectors: neighbors kept against speed, and the images that moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from PIL import Image

from ..methods import DEFAULT
from ..safety.files import printable
from .figures import GRAY, choose_named, literal, new_figure, others_key, style_of, write_names


class Kept(NamedTuple):
    """One measured way to run a model."""

    name: str
    speedup: float
    gmacs: float
    recall: float  # of ten neighbors, pruned queries and index
    recall_unpruned_index: float


def drift_figure(points: Sequence[Kept], title: str) -> Figure:
    """Plot the recall of ten neighbors against measured speedup, a panel for each setting.

    Args:
        points: All measurements of pruned models.
        title: The title of the figure.
    """
    figure = new_figure(9.6, 4.4)
    figure.suptitle(literal(title), fontsize=11)
    axes = figure.subplots(1, 2, sharey=True)
    settings = {"queries and index pruned": "recall",
                "pruned queries, unpruned index": "recall_unpruned_index"}  # fmt: skip
    for axis, (label, field) in zip(axes, settings.items(), strict=True):
        _panel(axis, points, field)
        axis.set_title(label, fontsize=10)
        axis.set_xlabel("speedup over the unpruned model")
    axes[0].set_ylabel("recall@10 of the unpruned model's neighbors")
    return figure


def _panel(axis: Any, points: Sequence[Kept], field: str) -> None:
    axis.grid(alpha=0.25)
    axis.axhline(1, color="#444444", lw=1, ls=":")
    names = dict.fromkeys(point.name for point in points)
    lines = {
        name: sorted(
            (point.speedup, getattr(point, field)) for point in points if point.name == name
        )
        for name in names
    }
    named = choose_named({name: [(-x, y) for x, y in line[::-1]] for name, line in lines.items()})
    ends = {}
    for name, line in lines.items():
        shown = name in named
        style: dict[str, Any] = (
            style_of(named.index(name)) if shown else {"color": GRAY, "marker": "."}
        )
        width = 2.4 if name == DEFAULT else 1.4
        axis.plot(*zip(*line, strict=True), lw=width, ms=5, zorder=5 if shown else 1.5, **style)
        if shown:
            ends[name] = (*line[-1], style["color"])
    low, high = axis.get_xlim()
    axis.set_xlim(low, high + 0.2 * (high - low))
    write_names(axis, ends, "right")
    if others := [name for name in lines if name not in named]:
        axis.legend(handles=[others_key(others)], fontsize=8, loc="lower left")


class Moved(NamedTuple):
    """An image, how far its vector moved, and its nearest neighbor before and after."""

    image: Image.Image
    name: str
    cosine: float
    before: Image.Image
    after: Image.Image


def moved_figure(moved: Sequence[Moved], title: str) -> Figure:
    """Show the images that moved most, a column each, above their nearest neighbors by the
    unpruned and by the pruned model.

    Args:
        moved: The farthest first.
        title: The title of the figure.
    """
    figure = new_figure(1.35 * max(4, len(moved)) + 0.8, 5.2)
    figure.suptitle(literal(title), fontsize=11)
    axes = figure.subplots(3, len(moved), squeeze=False)
    for column, example in enumerate(moved):
        for row, image in enumerate((example.image, example.before, example.after)):
            axis = axes[row][column]
            axis.imshow(image)
            axis.set_xticks([])
            axis.set_yticks([])
        name = literal(printable(example.name)[-18:])
        axes[0][column].set_title(f"{example.cosine:.3f}\n{name}", fontsize=7)
    for row, label in enumerate(("image", "nearest, unpruned", "nearest, pruned")):
        axes[row][0].set_ylabel(label, fontsize=8)
    return figure
