"""Plot a search: all trials, the front, the finalists on both halves, the chosen one."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..search.choice import Comparison, Judged, front
from ..search.objective import value
from ..search.study import FinishedTrial, best_first
from .figures import COLORS, literal, new_figure

_CHOSEN, _SECOND, _DOTS = COLORS[0], COLORS[1], "#999999"


def search_figure(trials: list[FinishedTrial], comparison: Comparison, title: str) -> Figure:
    """Plot trials of one budget by their rank, and those of a whole front by their cost."""
    figure = new_figure()
    axis = figure.subplots()
    labeled = trials[0].top1 is not None
    rows, chosen, references = comparison.rows, comparison.chosen, comparison.references
    if not labeled:
        references = references[1:]  # the unpruned model: KL 0 has no place on a logarithmic axis
    if chosen is None:
        _draw_over_cost(axis, trials, rows, references)
    else:
        _draw_over_rank(axis, trials, rows, chosen, references)
    axis.set_ylabel("top-1, %" if labeled else "KL divergence, unpruned ‖ pruned")
    axis.margins(y=0.08)
    if not labeled:
        axis.set_yscale("log")
        axis.invert_yaxis()  # up is better in both
    axis.set_title(literal(title), fontsize=11)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    return figure


def _draw_over_rank(
    axis: Any,
    trials: list[FinishedTrial],
    rows: list[Judged],
    chosen: Judged,
    references: list[Judged],
) -> None:
    ranked = best_first(trials)
    rank: dict[object, int] = {}
    for number, trial in enumerate(ranked, start=1):
        rank.setdefault(trial.schedule, number)
    axis.plot(range(1, len(ranked) + 1), [value(trial) for trial in ranked], ".",
              ms=4, color=_DOTS, label=f"{len(ranked)} trials, first half")  # fmt: skip
    others = [row for row in rows if row is not chosen]
    axis.plot([rank[row.schedule] for row in others], [value(row.second) for row in others],
              "D", ms=5, color=_SECOND, label="finalists, second half")  # fmt: skip
    first, second = value(chosen.first), value(chosen.second)
    # If the default was chosen, it was no trial: put it where it would have ranked.
    sign = -1 if chosen.first.top1 is None else 1
    better = sum(sign * value(trial) > sign * first for trial in trials)
    place = rank.get(chosen.schedule, 1 + better)
    axis.plot([place, place], [first, second], color=_CHOSEN, lw=1)
    axis.plot([place], [first], ".", ms=9, color=_CHOSEN)
    axis.plot([place], [second], "*", ms=14, color=_CHOSEN, label="chosen, second half")
    for style, line in zip(("--", ":"), references, strict=False):
        axis.axhline(value(line.second), color="#444444", lw=1, ls=style,
                     label=literal(f"{line.name}, second half"))  # fmt: skip
    axis.set_xlabel("trial, by its rank on the first half")


def _draw_over_cost(
    axis: Any, trials: list[FinishedTrial], rows: list[Judged], references: list[Judged]
) -> None:
    best = front(trials)
    axis.plot([trial.gmacs for trial in trials], [value(trial) for trial in trials], ".",
              ms=4, color=_DOTS, label=f"{len(trials)} trials, first half")  # fmt: skip
    axis.plot([trial.gmacs for trial in best], [value(trial) for trial in best], "-",
              lw=1.4, color=_CHOSEN, label="front, first half")  # fmt: skip
    axis.plot([row.gmacs for row in rows], [value(row.second) for row in rows], "D",
              ms=5, color=_SECOND, label="of the front, second half")  # fmt: skip
    for star in references:
        axis.plot([star.gmacs], [value(star.second)], "k*", ms=11,
                  label=literal(f"{star.name}, second half"))  # fmt: skip
    axis.set_xlabel("GMACs, with patch embedding and scoring")
