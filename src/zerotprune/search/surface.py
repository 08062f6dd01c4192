"""What a search draws, and the schedule it stands for: always one that costs the budget.

A sampler that draws stages and throws away what misses the budget would throw away nearly all. So
a draw leaves one degree of freedom, how strongly all stages cut together, and that is solved for.
There are two kinds of draw: a few stages with their cuts, similar tokens and rounds, or, for
methods that act by `similar` alone, a count of tokens for every block.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, permutations
from typing import Any, Generic, NamedTuple, TypeVar

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ..budgets import TOLERANCE
from ..budgets.solving import bisect, solve
from ..cost import Geometry
from ..dials import dials_of
from ..method import Method
from ..plan import Plan
from ..schedule import Schedule, Stage, share_that_keeps

#: Raise it whenever the same parameters stand for another schedule, or trials are stored otherwise.
VERSION = 2
MAX_STAGES = 6
ROUNDS = (1, 5, 10, 30, 50)
MAX_SIMILAR = 0.2
#: how far a schedule may be from the budget: half of what is allowed, as in `schedule_for`
NEAR = TOLERANCE / 2

Space = Mapping[str, BaseDistribution]
Params = Mapping[str, Any]
#: what happens at one stage, in whole tokens
Cut = TypeVar("Cut")


def surface_of(geometry: Geometry, method: Method) -> Surface[Any]:
    """Return the surface of a method, by what a search may vary."""
    if method.searchable == "counts":
        return CountSurface(geometry, method)
    return StageSurface(geometry, method)


class Surface(ABC, Generic[Cut]):
    """All schedules of one model and method that cost a given budget, in GMACs."""

    def __init__(self, geometry: Geometry, method: Method) -> None:
        if geometry.depth < 2:
            raise ValueError(f"a model of depth {geometry.depth} has no place for a stage")
        self.geometry, self.method = geometry, method
        self.unpruned = self.price(Schedule())
        self.lowest = self.price(self.cheapest())

    def price(self, schedule: Schedule) -> float:
        return Plan(schedule, self.geometry).gmacs("full")

    def check(self, budget: float) -> None:
        """Refuse a budget that no schedule meets."""
        if not self.lowest * (1 - NEAR) <= budget <= self.unpruned:
            raise ValueError(
                f"a budget of {budget:.4g} GMACs cannot be met: this model takes "
                f"{self.unpruned:.4g} unpruned and at least {self.lowest:.4g} pruned"
            )

    def space(self, budget: float | None) -> Space:
        """Return the parameters of a trial; without a budget, the budget is one of them.

        Every trial has all of them, even those of stages that it does not use: samplers that learn
        from earlier trials need that.
        """
        free = {"budget": FloatDistribution(self.lowest, self.unpruned)} if budget is None else {}
        return {**free, **self._shape_space()}

    def propose(self, params: Params, budget: float | None) -> Schedule:
        """Return the schedule that these parameters stand for."""
        return self._fit(params, params["budget"] if budget is None else budget)

    def start(self, budget: float | None) -> Params | None:
        """Return the parameters of the method's own schedule, if it is in the space."""
        return None

    @abstractmethod
    def cheapest(self) -> Schedule:
        """Return the schedule that costs least of all."""

    @abstractmethod
    def _shape_space(self) -> Space:
        """Return all parameters but the budget."""

    @abstractmethod
    def _fit(self, params: Params, budget: float) -> Schedule: ...

    @abstractmethod
    def _schedule(self, cuts: Sequence[Cut]) -> Schedule:
        """Return a valid schedule, whatever the cuts are."""

    @abstractmethod
    def _neighbors(self, cuts: list[Cut]) -> Iterable[list[Cut]]:
        """Return the cuts with single tokens more, less or moved."""

    def _price(self, cuts: Sequence[Cut]) -> float:
        return self.price(self._schedule(cuts))

    def _miss(self, cuts: Sequence[Cut], budget: float) -> float:
        return abs(self._price(cuts) - budget) / budget

    def _nearest(self, candidates: Iterable[list[Cut]], budget: float) -> list[Cut]:
        return min(candidates, key=lambda cuts: self._miss(cuts, budget))

    def _turn(self, cut_at: Callable[[float], list[Cut]], budget: float) -> list[Cut]:
        """Turn a dial from 0 to 1, no cut to the largest, until the cuts cost the budget."""

        def turn(dial: float) -> tuple[list[Cut], float]:
            cuts = cut_at(dial)
            return cuts, self._price(cuts)

        hit = bisect(turn, budget, steps=40, close_enough=NEAR / 5)
        assert hit is not None
        return hit.setting

    def _nudge(self, cuts: list[Cut], budget: float) -> list[Cut]:
        """Move single tokens wherever it helps most, as long as it helps."""
        for _ in range(20):
            best = self._nearest([cuts, *self._neighbors(cuts)], budget)
            if best is cuts:
                break
            cuts = best
        return cuts


class Wish(NamedTuple):
    """A stage as it was drawn, without the strength of its cut."""

    block: int
    cut: float  # relative to the other stages: exp(-strength × cut) is kept
    similar: float  # share of the patch tokens there that the S-stage prunes
    rounds: int


class StageCut(NamedTuple):
    """A stage in whole tokens."""

    block: int
    similar: int
    left: int  # patch tokens after it
    rounds: int


class StageSurface(Surface[StageCut]):
    """The surface of methods that act by a stage's keep, similar and rounds."""

    #: a strength at which every stage that cuts at all leaves one patch token
    MAX_STRENGTH = 200.0

    @property
    def max_stages(self) -> int:
        return min(MAX_STAGES, self.geometry.depth - 1)

    def cheapest(self) -> Schedule:
        """Drop all patch tokens but one at the first block, by the cheapest vote."""
        return self._schedule([StageCut(1, 0, 1, 1)])

    def _shape_space(self) -> Space:
        space: dict[str, BaseDistribution] = {}
        if self.max_stages > 1:  # samplers do not expect a choice among one
            space["stages"] = IntDistribution(1, self.max_stages)
        for number in range(1, self.max_stages + 1):
            space[f"place_{number}"] = FloatDistribution(0.0, 1.0)
            # Below zero stands for "not at all", which a uniform draw would never hit.
            space[f"cut_{number}"] = FloatDistribution(-0.25, 1.0)
            space[f"similar_{number}"] = FloatDistribution(-0.1, MAX_SIMILAR)
            space[f"rounds_{number}"] = CategoricalDistribution(ROUNDS)
        return space

    def wishes(self, params: Params) -> list[Wish]:
        """Return the stages that these parameters stand for, in the order of their blocks."""
        free, blocks, shapes = list(range(1, self.geometry.depth)), [], []
        for number in range(1, self.max_stages + 1):
            # A draw without replacement: every set of blocks is equally likely.
            place = int(params[f"place_{number}"] * len(free))
            blocks.append(free.pop(min(place, len(free) - 1)))
            cut, similar = (max(0.0, params[f"{name}_{number}"]) for name in ("cut", "similar"))
            shapes.append((cut, similar, int(params[f"rounds_{number}"])))
        places = sorted(blocks[: params.get("stages", 1)])
        return [Wish(block, *shape) for block, shape in zip(places, shapes, strict=False)]

    def _fit(self, params: Params, budget: float) -> Schedule:
        return self.fit(self.wishes(params), budget)

    def fit(self, wishes: Sequence[Wish], budget: float) -> Schedule:
        """Return the schedule of this shape that costs the budget, within half a percent.

        A shape that cannot meet it is relaxed: stages drawn to remove nothing remove tokens too,
        then all stages move to earlier blocks. If whole tokens are too coarse, single tokens are
        moved between stages, then one more stage removes the rest. As a last resort every stage
        votes only once: in very small models rounds cost as much as tokens.
        """
        best: list[StageCut] = []
        for shape in (wishes, [wish._replace(rounds=1) for wish in wishes]):
            cuts = self._scale(shape, budget)
            for refine in (self._nudge, self._trim):
                if self._miss(cuts, budget) > NEAR:
                    cuts = refine(cuts, budget)
            if self._miss(cuts, budget) <= NEAR:
                return self._schedule(cuts)
            best = self._nearest([best, cuts], budget)
        return self._schedule(best)

    def _scale(self, wishes: Sequence[Wish], budget: float) -> list[StageCut]:
        for shape in _ease(sorted(wishes), self.geometry.depth):
            if self._price(self._cuts(shape, self.MAX_STRENGTH)) <= budget:
                break
        if self._price(self._cuts(shape, 0.0)) < budget:  # the S-stages alone prune too much
            return self._turn(lambda dial: self._cuts(shape, 0.0, similar=dial), budget)
        # Most of the surface lies at small strengths: the power spreads them out.
        return self._turn(lambda dial: self._cuts(shape, self.MAX_STRENGTH * dial**4), budget)

    def _cuts(
        self, wishes: Sequence[Wish], strength: float, similar: float = 1.0
    ) -> list[StageCut]:
        patches, cuts = self.geometry.patches, []
        for wish in wishes:
            gone = min(round(similar * wish.similar * patches), patches // 2)
            left = max(1, round((patches - gone) * math.exp(-strength * wish.cut)))
            cuts.append(StageCut(wish.block, gone, left, wish.rounds))
            patches = left
        return cuts

    def _neighbors(self, cuts: list[StageCut]) -> Iterator[list[StageCut]]:
        for index in range(len(cuts)):
            yield _move(cuts, index, -1)
            yield _move(cuts, index, 1)

    def _trim(self, cuts: list[StageCut], budget: float) -> list[StageCut]:
        """Add a stage at the block where that comes nearest; later blocks are finer."""
        if len(cuts) == MAX_STAGES:
            return cuts
        if self._price(cuts) < budget and cuts:
            cuts = min(
                (_move(cuts, index, 1) for index in range(len(cuts))),
                key=lambda moved: (self._price(moved) < budget, self._miss(moved, budget)),
            )
        best, taken = cuts, {cut.block for cut in cuts}
        for block in range(self.geometry.depth - 1, 0, -1):
            if block in taken:
                continue
            low, high = 1, self.geometry.patches
            while low <= high:
                left = (low + high) // 2
                longer = sorted([*cuts, StageCut(block, 0, left, 1)])
                best = self._nearest([best, longer], budget)
                low, high = (low, left - 1) if self._price(longer) > budget else (left + 1, high)
            if self._miss(best, budget) <= NEAR:
                break
        return best

    def _schedule(self, cuts: Sequence[StageCut]) -> Schedule:
        patches, stages = self.geometry.patches, []
        for cut in cuts:
            similar = min(cut.similar, patches // 2)
            left = min(max(cut.left, 1), patches - similar)
            keep = share_that_keeps(left, patches - similar)
            # Votes that decide nothing are left out: equal schedules should look equal.
            stage = Stage(cut.block, keep, similar, cut.rounds if keep < 1 else None)
            if stage.prunes:
                stages.append(stage)
            patches = left
        return Schedule(tuple(stages), self.method)


def _move(cuts: list[StageCut], index: int, step: int) -> list[StageCut]:
    """Leave one stage a token more or less; one more also by sparing it in the S-stage."""
    cut = cuts[index]
    similar = max(0, cut.similar - 1) if step > 0 else cut.similar
    moved = cut._replace(similar=similar, left=cut.left + step)
    return [*cuts[:index], moved, *cuts[index + 1 :]]


def _ease(wishes: Sequence[Wish], depth: int) -> Iterator[list[Wish]]:
    """Yield the shape as drawn, then cheaper and cheaper ones."""
    yield list(wishes)
    bold = [wish._replace(cut=max(wish.cut, 0.25)) for wish in wishes]
    yield bold
    for step in range(1, depth):
        yield [
            wish._replace(block=max(first, wish.block - step))
            for first, wish in enumerate(bold, start=1)
        ]
    yield [Wish(1, 1.0, 0.0, 1)]


class CountSurface(Surface[int]):
    """The surface of methods that act by a stage's `similar` alone: a count for every block, at
    most half of the tokens there."""

    #: times the drawn counts, at which every block that loses tokens at all loses half of them
    MAX_SCALE = 1000.0

    def __init__(self, geometry: Geometry, method: Method) -> None:
        self.last = _last_block(geometry, method)
        super().__init__(geometry, method)

    @property
    def most(self) -> float:
        """The most that any block can lose: half of all patch tokens."""
        return self.geometry.patches / 2

    @property
    def latest_start(self) -> int:
        """The last block at which counts may begin, in the first half: later, few budgets could be
        met."""
        return max(1, self.last // 2)

    def cheapest(self) -> Schedule:
        return self._schedule(self._whole([self.most] * self.last))

    def _shape_space(self) -> Space:
        space: dict[str, BaseDistribution] = {}
        if self.last > 2:
            space["first"] = IntDistribution(1, self.latest_start)
        for block in range(1, self.last + 1):
            space[f"count_{block}"] = FloatDistribution(-0.25, 1.0)
        return space

    def start(self, budget: float | None) -> Params | None:
        if budget is None:
            return None
        try:
            schedule = solve(
                self.method,
                self.geometry,
                budget,
                self.unpruned,
                lambda schedule: Plan(schedule, self.geometry).price(),
            )
        except ValueError:  # its schedules do not reach every budget that the space does
            return None
        stages, blocks = [s for s in schedule.stages if s.prunes], range(1, self.last + 1)
        if any(stage.keep < 1 or stage.block not in blocks for stage in stages):
            return None
        counts = {stage.block: stage.similar for stage in stages}
        params: dict[str, Any] = {
            f"count_{block}": min(1.0, counts.get(block, 0) / self.most) for block in blocks
        }
        if self.last > 2:
            params["first"] = min([self.latest_start, *counts])
        return params

    def _fit(self, params: Params, budget: float) -> Schedule:
        first = params.get("first", 1)
        counts = [
            self.most * max(0.0, params[f"count_{block}"]) if block >= first else 0.0
            for block in range(1, self.last + 1)
        ]
        return self.fit(counts, budget)

    def fit(self, counts: Sequence[float], budget: float) -> Schedule:
        """Return the schedule with counts in these proportions, from the first block on, that
        costs the budget, within half a percent if whole tokens allow it.

        Counts that meet the budget as they are stay as they are. If the blocks that are to lose
        tokens cannot meet it, the others lose some as well.
        """
        whole = self._whole(counts)
        if self._miss(whole, budget) > TOLERANCE:
            whole = self._scale(counts, budget)
            if self._miss(whole, budget) > NEAR:
                whole = self._nudge(whole, budget)
        return self._schedule(whole)

    def _scale(self, counts: Sequence[float], budget: float) -> list[int]:
        top, most = max(counts), self.MAX_SCALE * self.most
        drawn = [count / top if top else 0.0 for count in counts]
        for shape in (drawn, [max(share, 0.25) for share in drawn]):
            if self._price(self._whole(shape, most)) <= budget:
                break
        # Most of the surface lies at small scales: the power spreads them out.
        return self._turn(lambda dial: self._whole(shape, dial**4 * most), budget)

    def _neighbors(self, cuts: list[int]) -> Iterator[list[int]]:
        blocks = range(len(cuts))
        single = [((block, step),) for block in blocks for step in (-1, 1)]
        pairs = [((block, -1), (other, 1)) for block, other in permutations(blocks, 2)]
        for steps in (*single, *pairs):
            moved = list(cuts)
            for block, step in steps:
                moved[block] = max(0, moved[block] + step)
            yield self._whole(moved)

    def _whole(self, counts: Sequence[float], scale: float = 1.0) -> list[int]:
        """Round counts to whole tokens, at most half of those there; it is their sums that are
        rounded, so that counts below one add up."""
        sums = [0, *(round(total) for total in accumulate(scale * count for count in counts))]
        left, whole = self.geometry.patches, []
        for before, after in pairwise(sums):
            whole.append(min(after - before, left // 2))
            left -= whole[-1]
        return whole

    def _schedule(self, cuts: Sequence[int]) -> Schedule:
        stages = (Stage(block, similar=count) for block, count in enumerate(cuts, start=1))
        return Schedule(tuple(stage for stage in stages if stage.prunes), self.method)


def _last_block(geometry: Geometry, method: Method) -> int:
    """Return the last block but one, or the last if the method's own schedules go so far.

    Tokens removed in the last block no longer affect CLS: a search would think that they are pruned
    at no loss.
    """
    for dial in dials_of(method, geometry):
        schedule = dial(0.5)
        stages = () if schedule is None else schedule.stages
        if any(stage.block == geometry.depth and stage.prunes for stage in stages):
            return geometry.depth
    return geometry.depth - 1
