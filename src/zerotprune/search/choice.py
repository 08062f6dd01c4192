"""The final choice, on images that had no say in the ranking, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..measure.statistics import Mean
from ..schedule import Schedule
from ..shapes import Float
from .objective import Outcome, rank
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
    """What came of a search, beside what there is without one."""

    unpruned: Judged
    default: Judged | None  # what the budget gives without a search, where that reaches as far
    rows: list[Judged]  # finalists in the order of the first half, or of a front by cost
    chosen: Judged | None  # None: the rows are a front

    @property
    def references(self) -> list[Judged]:
        return [self.unpruned] if self.default is None else [self.unpruned, self.default]


@dataclass(frozen=True)
class Choice(Comparison):
    """… and how far to trust it: the best of several looks better than it is, on the images it
    was chosen by."""

    chosen: Judged
    lost: float  # by the finalists on the second half, on average, beyond the unpruned model
    luck: float  # to be expected of the choice on the second half, by bootstrap over its images


def pick_finalists(trials: Sequence[FinishedTrial], count: int) -> list[FinishedTrial]:
    """The best few that differ."""
    distinct: dict[Schedule, FinishedTrial] = {}
    for each in best_first(trials):
        distinct.setdefault(each.schedule, each)
    return list(distinct.values())[:count]


def front(trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """Those that no other beats in both accuracy and cost, the cheapest first."""
    kept: list[FinishedTrial] = []
    for each in sorted(best_first(trials), key=lambda trial: trial.gmacs):
        if not kept or best_first([each, kept[-1]])[0] is each:
            kept.append(each)
    return kept


def thin_out(trials: Sequence[FinishedTrial], count: int) -> list[FinishedTrial]:
    """So many of them, spread evenly, with both ends."""
    if len(trials) <= count:
        return list(trials)
    if count == 1:
        return [trials[-1]]
    return [trials[round(at * (len(trials) - 1) / (count - 1))] for at in range(count)]


def choose(unpruned: Judged, default: Judged | None, finalists: list[Judged]) -> Choice:
    """The best on the second half; where no finalist is better there, the default stays."""
    running = finalists if default is None else [default, *finalists]
    chosen = min(running, key=lambda each: rank(each.second))
    # The halves need not be equally hard: the unpruned model tells.
    lost = sum(map(_drop, finalists)) / len(finalists) - _drop(unpruned)
    luck = expected_curse(
        torch.stack([each.second.scores for each in running]),
        torch.stack([-each.second.kl.double() for each in running]),
    )
    return Choice(unpruned, default, finalists, chosen, lost, luck)


def _drop(each: Judged) -> float:
    """From the first half to the second."""
    return float(each.first.scores.mean() - each.second.scores.mean())


def compare(own: Outcome, other: Outcome) -> Mean:
    """Paired over the images, with its standard error; above zero where `own` is better."""
    return Mean.of(own.scores - other.scores)


def expected_curse(
    table: Float[Tensor, "candidates images"], ties: Float[Tensor, "candidates images"]
) -> float:
    """How much the best of the candidates on a sample of these images drops on all of them.

    Each resample draws as many images as there are, with repetition; its best candidate won in
    part by luck, and how much of it was luck shows on the images it was drawn from. Equal means
    are told apart by those of `ties`, as in the choice itself.
    """
    count = table.shape[1]
    dice = torch.Generator().manual_seed(0)
    draws = torch.randint(count, (_RESAMPLES, count), generator=dice)
    times = torch.zeros(_RESAMPLES, count, dtype=table.dtype)
    times.scatter_add_(1, draws, torch.ones_like(draws, dtype=table.dtype))
    sampled, second = times @ table.T / count, times @ ties.T / count
    leading = sampled > sampled.amax(dim=1, keepdim=True) - 1e-9
    best = second.masked_fill(~leading, -math.inf).argmax(dim=1)
    true = table.mean(dim=1)
    return float((sampled.gather(1, best[:, None])[:, 0] - true[best]).mean())
