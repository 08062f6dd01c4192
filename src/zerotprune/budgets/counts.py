"""Counts on a budget: how many tokens go in each block, as near to a wish as the cost allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, permutations

from ..cost import Geometry
from ..method import Method
from ..schedule import Schedule, Stage
from .bisection import bisect
from .budget import TOLERANCE
from .surface import NEAR, Surface

#: times the wish, at which every block that is to lose tokens at all loses half of them
_UTMOST = 1000.0
_LEAST = 0.25


class CountSurface(Surface):
    """Of methods that act by a stage's `similar` alone, at most half of the tokens there."""

    def __init__(self, geometry: Geometry, method: Method) -> None:
        self.last = _last_block(geometry, method)
        super().__init__(geometry, method)

    @property
    def most(self) -> float:
        """What a block can lose at most: half of all patch tokens."""
        return self.geometry.patches / 2

    def cheapest(self) -> Schedule:
        return self._schedule(self._whole([self.most] * self.last))

    def fit(self, counts: Sequence[float], budget: float) -> Schedule:
        """The schedule whose counts, from the first block on, are in these proportions and which
        costs the budget, within half a percent where whole tokens allow it.

        Counts that meet the budget as they are stay as they are. Where the blocks that are to lose
        tokens cannot meet it, the others lose some as well.
        """
        whole = self._whole(counts)
        if self._miss(whole, budget) > TOLERANCE:
            whole = self._scale(counts, budget)
            if self._miss(whole, budget) > NEAR:
                whole = self._nudge(whole, budget)
        return self._schedule(whole)

    def _scale(self, counts: Sequence[float], budget: float) -> list[int]:
        top, utmost = max(counts), _UTMOST * self.most
        wished = [count / top if top else 0.0 for count in counts]
        for shape in (wished, [max(share, _LEAST) for share in wished]):
            if self._price(self._whole(shape, utmost)) <= budget:
                break

        def turn(dial: float) -> tuple[list[int], float]:
            # Most of the surface lies at small scales: the power spreads them out.
            whole = self._whole(shape, dial**4 * utmost)
            return whole, self._price(whole)

        hit = bisect(turn, budget, steps=40, enough=NEAR / 5)
        assert hit is not None
        return hit.setting

    def _nudge(self, whole: list[int], budget: float) -> list[int]:
        """Single tokens more, less or moved to another block, as long as it helps."""
        places = range(len(whole))
        moves = [((at, step),) for at in places for step in (-1, 1)]
        pairs = [((at, -1), (to, 1)) for at, to in permutations(places, 2)]
        for _ in range(20):
            moved = [self._move(whole, move) for move in (*moves, *pairs)]
            best = min(moved, key=lambda each: self._miss(each, budget))
            if self._miss(best, budget) >= self._miss(whole, budget):
                break
            whole = best
        return whole

    def _move(self, whole: Sequence[int], steps: Sequence[tuple[int, int]]) -> list[int]:
        moved = list(whole)
        for at, step in steps:
            moved[at] = max(0, moved[at] + step)
        return self._whole(moved)

    def _whole(self, counts: Sequence[float], scale: float = 1.0) -> list[int]:
        """In whole tokens, no more than half of what is there; their sums are rounded, so that
        counts below one add up."""
        sums = [0, *(round(each) for each in accumulate(scale * count for count in counts))]
        left, whole = self.geometry.patches, []
        for before, after in pairwise(sums):
            whole.append(min(after - before, left // 2))
            left -= whole[-1]
        return whole

    def _schedule(self, whole: Sequence[int]) -> Schedule:
        stages = (Stage(block, similar=count) for block, count in enumerate(whole, start=1))
        return Schedule(tuple(stage for stage in stages if stage.prunes), self.method)

    def _price(self, whole: Sequence[int]) -> float:
        return self.price(self._schedule(whole))

    def _miss(self, whole: Sequence[int], budget: float) -> float:
        return abs(self._price(whole) - budget) / budget


def _last_block(geometry: Geometry, method: Method) -> int:
    """The last but one; the last where the method's own schedules go so far. What goes there
    changes no CLS token: a search would take it for tokens that are pruned at no loss."""
    for dial in method.dials(geometry):
        schedule = dial(0.5)
        stages = () if schedule is None else schedule.stages
        if any(stage.block == geometry.depth and stage.prunes for stage in stages):
            return geometry.depth
    return geometry.depth - 1
