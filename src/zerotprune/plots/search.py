"""The figure of a search: all trials, the front, the finalists on both halves, the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from ..search.choice import Judged, front
from ..search.config import Measure
from ..search.objective import Outcome
from ..search.study import FinishedTrial, best_first
from .figure_files import COLOURS, new_figure

_LABELS = {"top1": "top-1, %", "kl": "KL divergence, unpruned ‖ pruned"}
_CHOSEN, _SECOND, _DOTS = COLOURS[0], COLOURS[1], "#999999"


def search_figure(
    trials: Sequence[FinishedTrial],
    measure: Measure,
    judged: Sequence[Judged],
    chosen: Judged | None,
    references: Sequence[Judged],
    title: str,
) -> Figure:
    """Trials of one budget stand by their rank, as all cost the same; those of a whole front by
    their cost. `judged` are drawn on both halves, `references` as lines or stars."""
    figure = new_figure()
    axis = figure.subplots()
    if chosen is None:
        _over_cost(axis, trials, measure, judged, references)
    else:
        _over_rank(axis, trials, measure, judged, chosen, references)
    axis.set_ylabel(_LABELS[measure])
    axis.margins(y=0.08)
    if measure == "kl":
        axis.set_yscale("log")
        axis.invert_yaxis()  # up is better in both
    axis.set_title(title, fontsize=11)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    return figure


def _over_rank(
    axis: Any,
    trials: Sequence[FinishedTrial],
    measure: Measure,
    judged: Sequence[Judged],
    chosen: Judged,
    references: Sequence[Judged],
) -> None:
    ranked = best_first(trials, measure)
    rank: dict[object, int] = {}
    for number, each in enumerate(ranked, start=1):
        rank.setdefault(each.schedule, number)
    axis.plot(range(1, len(ranked) + 1), [_value(each, measure) for each in ranked], ".",
              ms=4, color=_DOTS, label=f"{len(ranked)} trials, first half")  # fmt: skip
    others = [each for each in judged if each is not chosen]
    axis.plot([rank[each.schedule] for each in others],
              [_of(each.second, measure) for each in others], "D", ms=5, color=_SECOND,
              label="finalists, second half")  # fmt: skip
    values = _of(chosen.first, measure), _of(chosen.second, measure)
    # The default, where it is chosen, was no trial: it stands where it would have ranked.
    at = rank.get(chosen.schedule, 1 + _better(ranked, values[0], measure))
    axis.plot([at, at], values, color=_CHOSEN, lw=1)
    axis.plot([at], values[:1], ".", ms=9, color=_CHOSEN)
    axis.plot([at], values[1:], "*", ms=14, color=_CHOSEN, label="chosen, second half")
    for style, line in zip(("--", ":"), references, strict=False):
        if measure == "top1" or line.schedule.stages:
            axis.axhline(_of(line.second, measure), color="#444444", lw=1, ls=style,
                         label=f"{line.name}, second half")  # fmt: skip
    axis.set_xlabel("trial, by its rank on the first half")


def _over_cost(
    axis: Any,
    trials: Sequence[FinishedTrial],
    measure: Measure,
    judged: Sequence[Judged],
    references: Sequence[Judged],
) -> None:
    axis.plot([each.gmacs for each in trials], [_value(each, measure) for each in trials], ".",
              ms=4, color=_DOTS, label=f"{len(trials)} trials, first half")  # fmt: skip
    best = front(trials, measure)
    axis.plot([each.gmacs for each in best], [_value(each, measure) for each in best], "-",
              lw=1.4, color=_CHOSEN, label="front, first half")  # fmt: skip
    axis.plot([each.gmacs for each in judged], [_of(each.second, measure) for each in judged], "D",
              ms=5, color=_SECOND, label="of the front, second half")  # fmt: skip
    for star in references:
        if measure == "top1" or star.schedule.stages:
            axis.plot([star.gmacs], [_of(star.second, measure)], "k*", ms=11,
                      label=f"{star.name}, second half")  # fmt: skip
    axis.set_xlabel("GMACs, with patch embedding and scoring")


def _better(trials: Sequence[FinishedTrial], value: float, measure: Measure) -> int:
    sign = 1 if measure == "top1" else -1
    return sum(sign * _value(each, measure) > sign * value for each in trials)


def _value(each: FinishedTrial, measure: Measure) -> float:
    return each.top1 if measure == "top1" and each.top1 is not None else each.kl


def _of(outcome: Outcome, measure: Measure) -> float:
    return outcome.top1 if measure == "top1" and outcome.top1 is not None else outcome.mean_kl
