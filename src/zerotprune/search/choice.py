"""Choose on images that were not used for the ranking, and say how far to trust the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..measure.accuracy import Mean
from ..schedule import Schedule
from ..shapes import Float
from .objective import Outcome, rank_key
from .study import FinishedTrial, best_first

_RESAMPLES = 2000


@dataclass(frozen=True)
class Judged:
    """A schedule on both halves."""

    name: str
    schedule: Schedule
    gmacs: float
    first: Outcome
    second: Outcome


@dataclass(frozen=True)
class Comparison:
    """The result of a search, beside the schedule that needs no search."""

    unpruned: Judged
    default: Judged | None  # what the budget gives without a search, if it can be met
    rows: list[Judged]  # finalists in the order of the first half, or of a front by cost
    chosen: Judged | None  # None: the rows are a front

    @property
    def references(self) -> list[Judged]:
        return [self.unpruned] if self.default is None else [self.unpruned, self.default]


@dataclass(frozen=True)
class Choice(Comparison):
    """A comparison with a choice, and how far to trust it: the best of several looks better than
    it is, on the images it was chosen by."""

    chosen: Judged
    lost: float  # by the finalists on the second half, on average, beyond the unpruned model
    luck: float  # to be expected of the choice on the second half, by bootstrap over its images


def pick_finalists(trials: Sequence[FinishedTrial], count: int) -> list[FinishedTrial]:
    """Return the best `count` trials with different schedules."""
    distinct: dict[Schedule, FinishedTrial] = {}
    for trial in best_first(trials):
        distinct.setdefault(trial.schedule, trial)
    return list(distinct.values())[:count]


def front(trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """Return the trials that no other beats in both accuracy and cost, the cheapest first."""
    undominated: list[FinishedTrial] = []
    for trial in sorted(best_first(trials), key=lambda trial: trial.gmacs):
        if not undominated or best_first([trial, undominated[-1]])[0] is trial:
            undominated.append(trial)
    return undominated


def thin_out(trials: Sequence[FinishedTrial], count: int) -> list[FinishedTrial]:
    """Return `count` of them, spread evenly, with both ends."""
    if len(trials) <= count:
        return list(trials)
    if count == 1:
        return [trials[-1]]
    return [trials[round(step * (len(trials) - 1) / (count - 1))] for step in range(count)]


def choose(unpruned: Judged, default: Judged | None, finalists: list[Judged]) -> Choice:
    """Choose the best on the second half; if no finalist is better there, the default stays."""
    candidates = finalists if default is None else [default, *finalists]
    chosen = min(candidates, key=lambda judged: rank_key(judged.second))
    # The halves need not be equally hard: the unpruned model shows by how much.
    lost = sum(map(_drop, finalists)) / len(finalists) - _drop(unpruned)
    luck = expected_curse(
        torch.stack([judged.second.scores for judged in candidates]),
        torch.stack([-judged.second.kl.double() for judged in candidates]),
    )
    return Choice(unpruned, default, finalists, chosen, lost, luck)


def _drop(judged: Judged) -> float:
    """Return the drop of the score from the first half to the second."""
    return float(judged.first.scores.mean() - judged.second.scores.mean())


def paired_gain(outcome: Outcome, other: Outcome) -> Mean:
    """Return the mean gain over `other`, paired over the images, with its standard error."""
    return Mean.of(outcome.scores - other.scores)


def expected_curse(
    table: Float[Tensor, "candidates images"], ties: Float[Tensor, "candidates images"]
) -> float:
    """Return how much the best candidate on a sample of these images drops on all of them.

    Each resample draws as many images as there are, with replacement. Its best candidate won partly
    by luck; the images that it was drawn from show how much. Equal means are ranked by those of
    `ties`, as in the choice itself.
    """
    count = table.shape[1]
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(count, (_RESAMPLES, count), generator=generator)
    times = torch.zeros(_RESAMPLES, count, dtype=table.dtype)
    times.scatter_add_(1, draws, torch.ones_like(draws, dtype=table.dtype))
    sampled, second = times @ table.T / count, times @ ties.T / count
    leading = sampled > sampled.amax(dim=1, keepdim=True) - 1e-9
    best = second.masked_fill(~leading, -math.inf).argmax(dim=1)
    true = table.mean(dim=1)
    return float((sampled.gather(1, best[:, None])[:, 0] - true[best]).mean())
