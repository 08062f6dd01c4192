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
from .config import Measure
from .objective import Outcome
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
class Curse:
    """How much better than it is the best of several looks, on the images it was chosen by."""

    first: float  # observed: what the finalists lose on the second half, beyond the unpruned model
    second: float  # expected: of the choice on the second half, by bootstrap over its images


@dataclass(frozen=True)
class Choice:
    measure: Measure
    unpruned: Judged
    default: Judged | None  # of the paper's form for the same budget, where it reaches as far
    finalists: list[Judged]  # in the order of the first half
    chosen: Judged
    curse: Curse


def finalists(trials: Sequence[FinishedTrial], measure: Measure, count: int) -> list[FinishedTrial]:
    """The best few that differ."""
    distinct: dict[Schedule, FinishedTrial] = {}
    for each in best_first(trials, measure):
        distinct.setdefault(each.schedule, each)
    return list(distinct.values())[:count]


def front(trials: Sequence[FinishedTrial], measure: Measure) -> list[FinishedTrial]:
    """Those that no other beats in both accuracy and cost, the cheapest first."""
    rank = {each.number: at for at, each in enumerate(best_first(trials, measure))}
    best, kept = len(rank), []
    for each in sorted(trials, key=lambda each: (each.gmacs, rank[each.number])):
        if rank[each.number] < best:
            best = rank[each.number]
            kept.append(each)
    return kept


def thin_out(trials: Sequence[FinishedTrial], count: int) -> list[FinishedTrial]:
    """So many of them, spread evenly, with both ends."""
    if len(trials) <= count:
        return list(trials)
    if count == 1:
        return [trials[-1]]
    return [trials[round(at * (len(trials) - 1) / (count - 1))] for at in range(count)]


def choose(
    measure: Measure, unpruned: Judged, default: Judged | None, candidates: list[Judged]
) -> Choice:
    """The best on the second half; where no candidate is better there, the default stays."""
    running = [*([] if default is None else [default]), *candidates]
    chosen = min(running, key=lambda each: _rank(each.second, measure))
    curse = Curse(_lost(measure, unpruned, candidates), _lucky(measure, running))
    return Choice(measure, unpruned, default, candidates, chosen, curse)


def _rank(outcome: Outcome, measure: Measure) -> tuple[float, float]:
    top1 = outcome.top1 if measure == "top1" else None
    return (0.0 if top1 is None else -top1), outcome.mean_kl


def scores(outcome: Outcome, measure: Measure) -> Float[Tensor, " images"]:
    """Image by image, more is better: hits in points, or what KL is below zero."""
    if measure == "top1":
        assert outcome.hits is not None
        return 100 * outcome.hits.double()
    return -outcome.kl.double()


def difference(own: Outcome, other: Outcome, measure: Measure) -> Mean:
    """Paired over the images, with its standard error; above zero where `own` is better."""
    return Mean.of(scores(own, measure) - scores(other, measure))


def _lost(measure: Measure, unpruned: Judged, candidates: Sequence[Judged]) -> float:
    """What the candidates lose from the first half to the second, on average. The halves need not
    be equally hard: the unpruned model tells."""

    def lost(each: Judged) -> float:
        first, second = scores(each.first, measure), scores(each.second, measure)
        return float(first.mean() - second.mean())

    return sum(map(lost, candidates)) / len(candidates) - lost(unpruned)


def _lucky(measure: Measure, running: Sequence[Judged]) -> float:
    table = torch.stack([scores(each.second, measure) for each in running])
    ties = torch.stack([scores(each.second, "kl") for each in running])
    return expected_curse(table, ties)


def expected_curse(
    table: Float[Tensor, "candidates images"],
    ties: Float[Tensor, "candidates images"],
    seed: int = 0,
) -> float:
    """How much the best of the candidates on a sample of these images drops on all of them.

    Each resample draws as many images as there are, with repetition; its best candidate won in
    part by luck, and how much of it was luck shows on the images it was drawn from. Equal means
    are told apart by those of `ties`, as in the choice itself.
    """
    count = table.shape[1]
    dice = torch.Generator().manual_seed(seed)
    draws = torch.randint(count, (_RESAMPLES, count), generator=dice)
    times = torch.zeros(_RESAMPLES, count, dtype=table.dtype)
    times.scatter_add_(1, draws, torch.ones_like(draws, dtype=table.dtype))
    sampled, second = times @ table.T / count, times @ ties.T / count
    leading = sampled > sampled.amax(dim=1, keepdim=True) - 1e-9
    best = second.masked_fill(~leading, -math.inf).argmax(dim=1)
    true = table.mean(dim=1)
    return float((sampled.gather(1, best[:, None])[:, 0] - true[best]).mean())
