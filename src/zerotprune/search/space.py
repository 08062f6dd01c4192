"""What a trial may choose: number and places of the stages, their shape, and their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..schedule import Schedule
from .surface import MOST_STAGES, Surface, Wish

#: to be raised whenever the same parameters would mean another schedule
VERSION = 1
ROUNDS = (1, 5, 10, 30, 50)
MOST_SIMILAR = 0.2


class Chooser(Protocol):
    """That part of an Optuna trial which chooses."""

    def suggest_int(self, name: str, low: int, high: int) -> int: ...

    def suggest_float(self, name: str, low: float, high: float) -> float: ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


def propose(trial: Chooser, surface: Surface, budget: float | None) -> Schedule:
    """A schedule on the budget surface; without a budget that is chosen as well."""
    if budget is None:
        budget = trial.suggest_float("budget", surface.lowest, surface.unpruned)
    return surface.fit(wishes(trial, surface.geometry.depth), budget)


def wishes(trial: Chooser, depth: int) -> list[Wish]:
    """Every trial has all parameters, also those of stages that it does not have: samplers that
    learn from earlier trials need the same ones in each."""
    most = min(MOST_STAGES, depth - 1)
    count = trial.suggest_int("stages", 1, most)
    free, blocks, shapes = list(range(1, depth)), [], []
    for number in range(1, most + 1):
        # One draw without putting back: every set of places is equally likely.
        place = trial.suggest_float(f"place_{number}", 0.0, 1.0)
        blocks.append(free.pop(min(int(place * len(free)), len(free) - 1)))
        # Below zero stands for "not at all", which a uniform draw would never hit.
        cut = max(0.0, trial.suggest_float(f"cut_{number}", -0.25, 1.0))
        similar = max(0.0, trial.suggest_float(f"similar_{number}", -0.1, MOST_SIMILAR))
        rounds = trial.suggest_categorical(f"rounds_{number}", ROUNDS)
        shapes.append((cut, similar, int(rounds)))
    places = sorted(blocks[:count])
    return [Wish(block, *shape) for block, shape in zip(places, shapes, strict=False)]
