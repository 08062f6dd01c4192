"""A budget in time made a cost, by measuring on this machine at this batch size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..budgets import schedule_for
from ..budgets.bisection import bisect
from ..method import Method
from ..ranges import check_range
from ..schedule import Schedule
from ..surgery import attach, sharing_copy
from .clock import in_turn, quartiles, stopwatch

#: by which part a measured time may miss what was asked for
TOLERANCE = 0.15
_ROUNDS = 7
_STEPS = 7


@dataclass(frozen=True)
class Timed:
    """One call each, in milliseconds: quartiles and medians of samples taken in turn."""

    unpruned: float
    pruned: float
    speedups: tuple[float, float, float]  # quartiles and median of the ratios, turn by turn

    @property
    def speedup(self) -> float:
        return self.speedups[1]

    def __str__(self) -> str:
        low, middle, high = self.speedups
        return (
            f"unpruned {self.unpruned:.4g} ms, pruned {self.pruned:.4g} ms, {middle:.2f} times as "
            f"fast (quartiles {low:.2f} to {high:.2f})"
        )


@dataclass(frozen=True)
class TimeBudget:
    """How fast a pruned model is to be: times the unpruned one's speed, or milliseconds a batch."""

    speedup: float | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if (self.speedup is None) == (self.latency_ms is None):
            raise ValueError("a time budget is either speedup=… or latency_ms=…")
        if self.speedup is not None:
            check_range("speedup", self.speedup)
        if self.latency_ms is not None:
            check_range("latency_ms", self.latency_ms)

    def wanted(self, timed: Timed) -> float:
        """The speed-up that is asked for, on a machine that takes this long unpruned."""
        if self.speedup is not None:
            return self.speedup
        assert self.latency_ms is not None
        return timed.unpruned / self.latency_ms

    def check(self, timed: Timed, what_now: str = "try again, or give a cost") -> None:
        """Refuse a measurement that misses the budget, or that tells nothing."""
        asked = f"{self} was asked for, and this was measured: {timed}"
        low, middle, high = timed.speedups
        if high - low > 2 * TOLERANCE * middle:
            raise ValueError(f"{asked}: the machine is too busy to tell; {what_now}")
        if abs(middle / self.wanted(timed) - 1) > TOLERANCE:
            raise ValueError(f"{asked}, more than {TOLERANCE:.0%} off; {what_now}")

    def __str__(self) -> str:
        if self.speedup is not None:
            return f"a speed-up of {self.speedup:g}"
        return f"{self.latency_ms:g} ms a batch"


@torch.inference_mode()
def time_schedule(
    model: nn.Module, schedule: Schedule, images: Tensor, rounds: int = _ROUNDS
) -> Timed:
    """The pruned model and the unpruned one in turn. The model itself is left alone."""
    whole, pruned = sharing_copy(model), attach(sharing_copy(model), schedule)
    clock = stopwatch(images.device)
    samplers = [partial(clock, partial(each, images)) for each in (whole, pruned)]
    turns = list(in_turn(samplers, rounds))
    unpruned_ms, pruned_ms = (1e3 * quartiles(each)[1] for each in zip(*turns, strict=True))
    return Timed(unpruned_ms, pruned_ms, quartiles([own / other for own, other in turns]))


def cost_for(
    model: nn.Module, budget: TimeBudget, images: Tensor, method: Method | str | None = None
) -> tuple[float, Timed]:
    """The cost at which the method's own schedules take that time, and what they took."""

    def time_cost(cost: float, rounds: int = _ROUNDS) -> Timed | None:
        try:
            schedule = schedule_for(model, cost=cost, method=method, images=images)
        except ValueError:  # too few tokens to meet just this share
            return None
        return time_schedule(model, schedule, images, rounds)

    def turn(dial: float) -> tuple[float, float] | None:
        cost = 1 - dial * (1 - lowest)
        timed = time_cost(cost)
        return None if timed is None else (cost, 1 / timed.speedup)

    for lowest in (step / 20 for step in range(3, 20)):
        fastest = time_cost(lowest)
        if fastest is not None:
            break
    else:
        raise ValueError("no schedule of this method prunes this model")
    wanted, asked = budget.wanted(fastest), f"{budget} at batch {len(images)}"
    if wanted <= 1:
        raise ValueError(f"{asked} needs no pruning: measured, {fastest}")
    if fastest.speedup < wanted * (1 - TOLERANCE):
        raise ValueError(
            f"{asked} cannot be reached: measured on this machine at {lowest:.2f} of the cost, "
            f"{fastest}"
        )
    hit = bisect(turn, 1 / wanted, steps=_STEPS, enough=0.01)
    assert hit is not None
    timed = time_cost(hit.setting, rounds=3 * _ROUNDS)
    assert timed is not None
    budget.check(timed)
    return hit.setting, timed
