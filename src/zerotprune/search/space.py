"""What a trial may choose: a few stages, their shape and rounds; or the counts of all blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ..budgets.counts import CountSurface
from ..budgets.solving import solve
from ..budgets.surface import MOST_STAGES, StageSurface, Surface, Wish
from ..cost import Geometry
from ..method import Method
from ..plan import Plan
from ..schedule import Schedule

#: to be raised whenever the same parameters would mean another schedule
VERSION = 1
ROUNDS = (1, 5, 10, 30, 50)
MOST_SIMILAR = 0.2

Space = Mapping[str, BaseDistribution]
Params = Mapping[str, Any]


def surface_of(geometry: Geometry, method: Method) -> Surface:
    """Where the method's schedules lie: by what it says that a search draws."""
    kind = CountSurface if method.searchable == "counts" else StageSurface
    return kind(geometry, method)


def space_of(surface: Surface, budget: float | None) -> Space:
    """The same parameters in every trial, also those of stages that it does not have: samplers
    that learn from earlier trials need it. Without a budget that is chosen as well."""
    space: dict[str, BaseDistribution] = {}
    if budget is None:
        space["budget"] = FloatDistribution(surface.lowest, surface.unpruned)
    if isinstance(surface, CountSurface):
        if surface.last > 2:  # samplers do not expect a choice among one
            space["first"] = IntDistribution(1, _latest_start(surface))
        for block in range(1, surface.last + 1):
            # Below zero stands for "not at all", which a uniform draw would never hit.
            space[f"count_{block}"] = FloatDistribution(-0.25, 1.0)
        return space
    most = _most_stages(surface.geometry.depth)
    if most > 1:
        space["stages"] = IntDistribution(1, most)
    for number in range(1, most + 1):
        space[f"place_{number}"] = FloatDistribution(0.0, 1.0)
        space[f"cut_{number}"] = FloatDistribution(-0.25, 1.0)
        space[f"similar_{number}"] = FloatDistribution(-0.1, MOST_SIMILAR)
        space[f"rounds_{number}"] = CategoricalDistribution(ROUNDS)
    return space


def start_of(surface: Surface, budget: float | None) -> Params | None:
    """The parameters of the method's own schedule for the budget, where there is one in the space:
    a search by counts has it for its first trial."""
    if budget is None or not isinstance(surface, CountSurface):
        return None

    def price(schedule: Schedule) -> float | None:
        return Plan(schedule, surface.geometry).price()

    try:
        own = solve(surface.method, surface.geometry, budget, surface.unpruned, price)
    except ValueError:  # it does not reach as far as the space does
        return None
    acting = {stage.block: stage.similar for stage in own.stages if stage.prunes}
    blocks = range(1, surface.last + 1)
    if any(stage.keep < 1 or stage.block not in blocks for stage in own.stages if stage.prunes):
        return None
    params: dict[str, Any] = {
        f"count_{block}": min(1.0, acting.get(block, 0) / surface.most) for block in blocks
    }
    if surface.last > 2:
        params["first"] = min(_latest_start(surface), *acting)
    return params


def propose(params: Params, surface: Surface, budget: float | None) -> Schedule:
    """The schedule of these choices on the budget surface."""
    price = params["budget"] if budget is None else budget
    if isinstance(surface, CountSurface):
        return surface.fit(counts(params, surface), price)
    assert isinstance(surface, StageSurface)
    return surface.fit(wishes(params, surface.geometry.depth), price)


def counts(params: Params, surface: CountSurface) -> list[float]:
    """The tokens that each block is to lose, before they are scaled to the budget."""
    first = params.get("first", 1)
    return [
        surface.most * max(0.0, params[f"count_{block}"]) if block >= first else 0.0
        for block in range(1, surface.last + 1)
    ]


def wishes(params: Params, depth: int) -> list[Wish]:
    free, blocks, shapes = list(range(1, depth)), [], []
    for number in range(1, _most_stages(depth) + 1):
        # One draw without putting back: every set of places is equally likely.
        blocks.append(free.pop(min(int(params[f"place_{number}"] * len(free)), len(free) - 1)))
        cut, similar = (max(0.0, params[f"{name}_{number}"]) for name in ("cut", "similar"))
        shapes.append((cut, similar, int(params[f"rounds_{number}"])))
    places = sorted(blocks[: params.get("stages", 1)])
    return [Wish(block, *shape) for block, shape in zip(places, shapes, strict=False)]


def _most_stages(depth: int) -> int:
    return min(MOST_STAGES, depth - 1)


def _latest_start(surface: CountSurface) -> int:
    """Counts begin in the first half of the blocks: later, few budgets could be met."""
    return max(1, surface.last // 2)
