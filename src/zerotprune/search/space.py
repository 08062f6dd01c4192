"""What a trial may choose: number and places of the stages, their shape, and their rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ..budgets.surface import MOST_STAGES, Surface, Wish
from ..schedule import Schedule

#: to be raised whenever the same parameters would mean another schedule
VERSION = 1
ROUNDS = (1, 5, 10, 30, 50)
MOST_SIMILAR = 0.2

Space = Mapping[str, BaseDistribution]
Params = Mapping[str, Any]


def space_of(surface: Surface, budget: float | None) -> Space:
    """The same parameters in every trial, also those of stages that it does not have: samplers
    that learn from earlier trials need it. Without a budget that is chosen as well."""
    space: dict[str, BaseDistribution] = {}
    if budget is None:
        space["budget"] = FloatDistribution(surface.lowest, surface.unpruned)
    most = _most_stages(surface.geometry.depth)
    if most > 1:  # samplers do not expect a choice among one
        space["stages"] = IntDistribution(1, most)
    for number in range(1, most + 1):
        space[f"place_{number}"] = FloatDistribution(0.0, 1.0)
        # Below zero stands for "not at all", which a uniform draw would never hit.
        space[f"cut_{number}"] = FloatDistribution(-0.25, 1.0)
        space[f"similar_{number}"] = FloatDistribution(-0.1, MOST_SIMILAR)
        space[f"rounds_{number}"] = CategoricalDistribution(ROUNDS)
    return space


def propose(params: Params, surface: Surface, budget: float | None) -> Schedule:
    """The schedule of these choices on the budget surface."""
    price = params["budget"] if budget is None else budget
    return surface.fit(wishes(params, surface.geometry.depth), price)


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
