"""The budget surface: the schedule that costs what was asked for, whatever shape was wished.

A sampler that draws stages and throws away what misses the budget would throw away nearly all. So
a wish leaves one degree of freedom, how strongly all stages cut together, and that is solved for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..cost import Geometry
from ..method import Method
from ..plan import Plan
from ..schedule import Schedule, Stage, share_that_keeps
from .bisection import bisect
from .budget import TOLERANCE

MOST_STAGES = 6
#: by which part of the budget a schedule may miss it: half of what is allowed, as elsewhere
NEAR = TOLERANCE / 2
#: a strength at which every stage that cuts at all leaves one patch token
_UTMOST = 200.0
_LEAST_CUT = 0.25


class Wish(NamedTuple):
    """One stage as it is wished: all but the strength."""

    block: int
    cut: float  # against the cuts of the other stages: exp(-strength × cut) is kept
    similar: float  # share of the patch tokens there that the S-stage prunes
    rounds: int


class _Cut(NamedTuple):
    """One stage in whole tokens."""

    block: int
    similar: int
    left: int  # patch tokens after it
    rounds: int


class Surface(ABC):
    """All schedules of one model and method that cost a given budget."""

    def __init__(self, geometry: Geometry, method: Method) -> None:
        if geometry.depth < 2:
            raise ValueError(f"a model of depth {geometry.depth} has no place for a stage")
        self.geometry, self.method = geometry, method
        self.unpruned = self.price(Schedule())
        self.lowest = self.price(self.cheapest())

    @abstractmethod
    def cheapest(self) -> Schedule:
        """The schedule that costs least of all."""

    def price(self, schedule: Schedule) -> float:
        return Plan(schedule, self.geometry).gmacs("full")

    def check(self, budget: float) -> None:
        """Refuse a budget that no schedule meets."""
        if not self.lowest * (1 - NEAR) <= budget <= self.unpruned:
            raise ValueError(
                f"a budget of {budget:.4g} GMACs cannot be met: this model takes "
                f"{self.unpruned:.4g} unpruned and {self.lowest:.4g} at least"
            )


class StageSurface(Surface):
    """Of methods that act by a stage's keep, similar and rounds."""

    def cheapest(self) -> Schedule:
        """All patch tokens but one go at the first chance, by the cheapest vote."""
        return self._schedule([_Cut(1, 0, 1, 1)])

    def fit(self, wishes: Sequence[Wish], budget: float) -> Schedule:
        """The schedule of this shape that costs the budget, within half a percent.

        Where the shape cannot, the nearest that can: stages that were not to cut do, then all
        stages move to earlier blocks. Where whole tokens are too coarse, single tokens are moved
        from stage to stage, then one more stage takes off the rest, and at last rounds are given
        up, which in very small models cost as much as tokens.
        """
        best: list[_Cut] = []
        for shape in (wishes, [wish._replace(rounds=1) for wish in wishes]):
            cuts = self._solve(shape, budget)
            for refine in (self._nudge, self._trim):
                if self._miss(cuts, budget) > NEAR:
                    cuts = refine(cuts, budget)
            if self._miss(cuts, budget) <= NEAR:
                return self._schedule(cuts)
            best = min(best, cuts, key=lambda each: self._miss(each, budget))
        return self._schedule(best)

    def _solve(self, wishes: Sequence[Wish], budget: float) -> list[_Cut]:
        for shape in _ease(sorted(wishes), self.geometry.depth):
            if self._price(self._cuts(shape, _UTMOST)) <= budget:
                break
        # Where the S-stages alone prune too much, the dial is how much of them is done.
        overshoots = self._price(self._cuts(shape, 0.0)) < budget

        def turn(dial: float) -> tuple[list[_Cut], float]:
            # Most of the surface lies at small strengths: the power spreads them out.
            strength = 0.0 if overshoots else _UTMOST * dial**4
            cuts = self._cuts(shape, strength, dial if overshoots else 1.0)
            return cuts, self._price(cuts)

        hit = bisect(turn, budget, steps=40, enough=NEAR / 5)
        assert hit is not None
        return hit.setting

    def _nudge(self, cuts: list[_Cut], budget: float) -> list[_Cut]:
        """Single tokens moved, at whichever stage it helps most, as long as it helps."""
        for _ in range(20):
            moved = [_move(cuts, at, step) for at in range(len(cuts)) for step in (-1, 1)]
            best = min(moved, key=lambda each: self._miss(each, budget), default=cuts)
            if self._miss(best, budget) >= self._miss(cuts, budget):
                break
            cuts = best
        return cuts

    def _trim(self, cuts: list[_Cut], budget: float) -> list[_Cut]:
        """With one stage more, at the block where it comes nearest; the later, the finer."""
        if len(cuts) == MOST_STAGES:
            return cuts
        if self._price(cuts) < budget and cuts:
            cuts = min(
                (_move(cuts, at, 1) for at in range(len(cuts))),
                key=lambda each: (self._price(each) < budget, self._miss(each, budget)),
            )
        best, taken = cuts, {cut.block for cut in cuts}
        for block in range(self.geometry.depth - 1, 0, -1):
            if block in taken:
                continue
            low, high = 1, self.geometry.patches
            while low <= high:
                left = (low + high) // 2
                longer = sorted([*cuts, _Cut(block, 0, left, 1)])
                best = min(best, longer, key=lambda each: self._miss(each, budget))
                low, high = (low, left - 1) if self._price(longer) > budget else (left + 1, high)
            if self._miss(best, budget) <= NEAR:
                break
        return best

    def _cuts(self, wishes: Sequence[Wish], strength: float, similar: float = 1.0) -> list[_Cut]:
        patches, cuts = self.geometry.patches, []
        for wish in wishes:
            gone = min(round(similar * wish.similar * patches), patches // 2)
            left = max(1, round((patches - gone) * math.exp(-strength * wish.cut)))
            cuts.append(_Cut(wish.block, gone, left, wish.rounds))
            patches = left
        return cuts

    def _schedule(self, cuts: Sequence[_Cut]) -> Schedule:
        """Valid whatever the numbers are; a stage that would prune nothing is left out."""
        patches, stages = self.geometry.patches, []
        for cut in cuts:
            similar = min(cut.similar, patches // 2)
            left = min(max(cut.left, 1), patches - similar)
            keep = share_that_keeps(left, patches - similar)
            # Votes that decide nothing are not counted: equal schedules should look equal.
            stage = Stage(cut.block, keep, similar, cut.rounds if keep < 1 else None)
            if stage.prunes:
                stages.append(stage)
            patches = left
        return Schedule(tuple(stages), self.method)

    def _price(self, cuts: Sequence[_Cut]) -> float:
        return self.price(self._schedule(cuts))

    def _miss(self, cuts: Sequence[_Cut], budget: float) -> float:
        return abs(self._price(cuts) - budget) / budget


def _move(cuts: list[_Cut], at: int, step: int) -> list[_Cut]:
    """One stage with a token more or less; one more also by being spared in its S-stage."""
    cut = cuts[at]
    similar = max(0, cut.similar - 1) if step > 0 else cut.similar
    return [*cuts[:at], cut._replace(similar=similar, left=cut.left + step), *cuts[at + 1 :]]


def _ease(wishes: Sequence[Wish], depth: int) -> Iterator[list[Wish]]:
    """The shape as wished, then shapes that can cost less and less, down to the least of all."""
    yield list(wishes)
    bold = [wish._replace(cut=max(wish.cut, _LEAST_CUT)) for wish in wishes]
    yield bold
    for step in range(1, depth):
        yield [
            wish._replace(block=max(first, wish.block - step))
            for first, wish in enumerate(bold, start=1)
        ]
    yield [Wish(1, 1.0, 0.0, 1)]
