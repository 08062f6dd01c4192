"""A budget in speed: find the cost at which a pruned model is as fast as asked for, by measuring.

Pruned and unpruned models are timed in turn, on this device, at this batch size and precision, so
that a noisy machine is as noisy for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..backbones import unwrap
from ..clock import in_turn, quartiles, stopwatch
from ..method import Method
from ..ranges import check_range
from ..schedule import Schedule
from ..surgery import attach, sharing_copy
from .solving import bisect, schedule_for

#: how far the measured speed may be from the budget, relative to the budget
TOLERANCE = 0.05
#: how far apart the quartiles of the speed-up may lie; beyond that the machine is too busy
SPREAD = 0.3
_ROUNDS = 7
_STEPS = 7
_CORRECTIONS = 3


@dataclass(frozen=True)
class Timed:
    """Medians of one call each, in milliseconds, sampled in turn."""

    unpruned: float
    pruned: float
    speedups: tuple[float, float, float]  # lower quartile, median, upper quartile of the ratios

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
    """How fast a pruned model should be.

    Args:
        speedup: Times the unpruned model's speed.
        latency_ms: Milliseconds for one batch. Give either this or `speedup`.
    """

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
        """Return the speed-up that the budget means on the machine that `timed` comes from."""
        if self.speedup is not None:
            return self.speedup
        assert self.latency_ms is not None
        return timed.unpruned / self.latency_ms

    def is_met(self, timed: Timed) -> bool:
        return abs(timed.speedup / self.wanted(timed) - 1) <= TOLERANCE

    def check(self, timed: Timed, advice: str = "try again, or give a cost") -> None:
        """Refuse a measurement that misses the budget, or that is inconclusive."""
        asked = f"{self} was asked for, measured: {timed}"
        low, middle, high = timed.speedups
        if high - low > SPREAD * middle:
            raise ValueError(f"{asked}; the machine is too busy to measure; {advice}")
        if not self.is_met(timed):
            raise ValueError(f"{asked}, more than {TOLERANCE:.0%} off; {advice}")

    def __str__(self) -> str:
        if self.speedup is not None:
            return f"a speed-up of {self.speedup:g}"
        return f"{self.latency_ms:g} ms a batch"


@torch.inference_mode()
def time_schedule(
    model: nn.Module, schedule: Schedule, images: Tensor, rounds: int = _ROUNDS
) -> Timed:
    """Time the model pruned by the schedule and unpruned, in turn. The model is left alone; its
    copies are compiled if it is."""
    inner = unwrap(model)
    copies: list[nn.Module] = [sharing_copy(inner), attach(sharing_copy(inner), schedule)]
    if hasattr(model, "_orig_mod"):
        copies = [torch.compile(copy) for copy in copies]  # type: ignore[misc]
    clock = stopwatch(images.device)
    samplers = [partial(clock, partial(copy, images)) for copy in copies]
    turns = list(in_turn(samplers, rounds))
    unpruned_ms, pruned_ms = (1e3 * quartiles(times)[1] for times in zip(*turns, strict=True))
    return Timed(unpruned_ms, pruned_ms, quartiles([whole / pruned for whole, pruned in turns]))


def cost_for(
    model: nn.Module, budget: TimeBudget, images: Tensor, method: Method | str | None = None
) -> tuple[float, Timed]:
    """Return the cost at which the method's schedules meet the budget, and what was measured.

    Raises ValueError if the budget cannot be met within 5 %, with the best that was measured.
    """

    def time_cost(cost: float, rounds: int = _ROUNDS) -> Timed | None:
        try:
            schedule = schedule_for(model, cost=cost, method=method, images=images)
        except ValueError:  # too few tokens to meet just this share
            return None
        return time_schedule(model, schedule, images, rounds)

    lowest, fastest = _fastest(time_cost)
    wanted, asked = budget.wanted(fastest), f"{budget} at batch {len(images)}"
    if wanted <= 1:
        raise ValueError(f"{asked} needs no pruning: measured, {fastest}")
    if fastest.speedup < wanted * (1 - TOLERANCE):
        raise ValueError(
            f"{asked} cannot be reached; the best measured here, at {lowest:.2f} of the cost: "
            f"{fastest}"
        )

    def turn(dial: float) -> tuple[float, float] | None:
        cost = 1 - dial * (1 - lowest)
        timed = time_cost(cost)
        return None if timed is None else (cost, 1 / timed.speedup)

    hit = bisect(turn, 1 / wanted, steps=_STEPS, close_enough=0.01)
    assert hit is not None
    cost, timed = hit.setting, time_cost(hit.setting, rounds=3 * _ROUNDS)
    assert timed is not None
    for _ in range(_CORRECTIONS):
        if budget.is_met(timed) or timed.speedup <= 1:
            break
        # The time saved is about in proportion to the compute saved.
        saved = (1 - 1 / wanted) / (1 - 1 / timed.speedup)
        corrected = min(max(1 - (1 - cost) * saved, lowest), 0.99)
        again = time_cost(corrected, rounds=3 * _ROUNDS)
        if again is None:
            break
        cost, timed = corrected, again
    budget.check(timed)
    return cost, timed


def _fastest(time_cost: Callable[[float], Timed | None]) -> tuple[float, Timed]:
    """Return the lowest cost that the method can be set to, and how fast it is there."""
    for step in range(3, 20):
        fastest = time_cost(step / 20)
        if fastest is not None:
            return step / 20, fastest
    raise ValueError("no schedule of this method prunes this model")
