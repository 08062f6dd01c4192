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
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from ..budgets.surface import MOST_STAGES, Surface, Wish
from ..schedule import Schedule

#: to be raised whenever the same parameters would mean another schedule
VERSION = 1
ROUNDS = (1, 5, 10, 30, 50)
MOST_SIMILAR = 0.2

Space = Mapping[str, BaseDistribution]
Chosen = Mapping[str, Any]


def space_of(surface: Surface, budget: float | None) -> Space:
    """The same parameters in every trial, also those of stages that it does not have: samplers
    that learn from earlier trials need it. Without a budget that is chosen as well."""
    found: dict[str, BaseDistribution] = {}
    if budget is None:
        found["budget"] = FloatDistribution(surface.lowest, surface.unpruned)
    most = _most_stages(surface.geometry.depth)
    if most > 1:  # samplers do not expect a choice among one
        found["stages"] = IntDistribution(1, most)
    for number in range(1, most + 1):
        found[f"place_{number}"] = FloatDistribution(0.0, 1.0)
        # Below zero stands for "not at all", which a uniform draw would never hit.
        found[f"cut_{number}"] = FloatDistribution(-0.25, 1.0)
        found[f"similar_{number}"] = FloatDistribution(-0.1, MOST_SIMILAR)
        found[f"rounds_{number}"] = CategoricalDistribution(ROUNDS)
    return found


def draw(study: Study, sampler: BaseSampler, trial: FrozenTrial, space: Space) -> Chosen:
    """All choices of a trial at once. An Optuna trial would write each of them to the storage by
    itself, where workers wait for one another; what others have to know of a trial that still
    runs, the samplers that learn write themselves."""
    study._thread_local.cached_all_trials = None  # to learn from what is finished by now
    sampler.before_trial(study, trial)
    found = sampler.sample_relative(study, trial, dict(space))
    for name, distribution in space.items():
        if name not in found:
            found[name] = sampler.sample_independent(study, trial, name, distribution)
    return found


def propose(chosen: Chosen, surface: Surface, budget: float | None) -> Schedule:
    """The schedule of these choices on the budget surface."""
    price = chosen["budget"] if budget is None else budget
    return surface.fit(wishes(chosen, surface.geometry.depth), price)


def wishes(chosen: Chosen, depth: int) -> list[Wish]:
    free, blocks, shapes = list(range(1, depth)), [], []
    for number in range(1, _most_stages(depth) + 1):
        # One draw without putting back: every set of places is equally likely.
        blocks.append(free.pop(min(int(chosen[f"place_{number}"] * len(free)), len(free) - 1)))
        cut, similar = (max(0.0, chosen[f"{name}_{number}"]) for name in ("cut", "similar"))
        shapes.append((cut, similar, int(chosen[f"rounds_{number}"])))
    places = sorted(blocks[: chosen.get("stages", 1)])
    return [Wish(block, *shape) for block, shape in zip(places, shapes, strict=False)]


def _most_stages(depth: int) -> int:
    return min(MOST_STAGES, depth - 1)
