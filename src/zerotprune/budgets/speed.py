"""A budget in speed: find the cost at which a pruned model has the speedup, by measuring.

Pruned models and the unpruned one are timed in turn, so that noise affects all alike: on this
device, at this batch size and precision, eager or compiled as the model is. Time is nearly linear
in cost: time two costs, then the one that the line between them predicts, and repeat until the
budget is met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones import unwrap
from ..clock import in_turn, quartiles, stopwatch
from ..method import Method, name_of, resolve
from ..methods import DEFAULT
from ..safety.ranges import check_range
from ..schedule import Schedule
from ..surgery import attach, sharing_copy
from .solving import schedule_for

#: how far the measured speed may be from the budget, relative to the budget
TOLERANCE = 0.05
#: how far apart the quartiles of the speedup may be before the machine counts as too busy
SPREAD = 0.3
#: the relative error of a median at which no more rounds are run
SURE = 0.01
_ROUNDS = 7  # of a rough measurement
_MOST_ROUNDS = 27  # of a precise one
_ATTEMPTS = 5


@dataclass(frozen=True)
class Timed:
    """Milliseconds of one call, medians of samples that were taken in turn."""

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
        speedup: Over the unpruned model.
        latency_ms: Milliseconds for one batch. Give either this or `speedup`.
    """

    speedup: float | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if (self.speedup is None) == (self.latency_ms is None):
            raise ValueError("a time budget needs either speedup=… or latency_ms=…")
        if self.speedup is not None:
            check_range("speedup", self.speedup)
        if self.latency_ms is not None:
            check_range("latency_ms", self.latency_ms)

    def wanted(self, timed: Timed) -> float:
        """Return the speedup that the budget means on the machine that `timed` comes from."""
        if self.speedup is not None:
            return self.speedup
        assert self.latency_ms is not None
        return timed.unpruned / self.latency_ms

    def miss(self, timed: Timed) -> float:
        """Return how far a measurement is from the budget, relative to the budget."""
        return abs(timed.speedup / self.wanted(timed) - 1)

    def check(self, timed: Timed, advice: str = "try again, or give a cost") -> None:
        """Refuse a measurement that misses the budget, or that is inconclusive."""
        compared = f"expected {self}, measured {timed}"
        low, middle, high = timed.speedups
        if high - low > SPREAD * middle:
            raise ValueError(f"{compared}; the machine is too busy to measure; {advice}")
        if self.miss(timed) > TOLERANCE:
            raise ValueError(f"{compared}, more than {TOLERANCE:.0%} off; {advice}")

    def __str__(self) -> str:
        if self.speedup is not None:
            return f"a speedup of {self.speedup:g}"
        return f"{self.latency_ms:g} ms a batch"


@dataclass(frozen=True)
class Reached:
    """The result of one method for one budget: the nearest cost, or the fastest."""

    budget: TimeBudget
    cost: float
    schedule: Schedule
    timed: Timed
    failure: str = ""  # why the budget is not met


@torch.inference_mode()
def time_schedules(
    model: nn.Module, schedules: Sequence[Schedule], images: Tensor, rounds: int = _ROUNDS
) -> list[Timed]:
    """Time copies of the model, pruned by each schedule and unpruned, all in turn.

    They are compiled if the model is. Stops before `rounds` once all medians are precise.
    """
    inner = unwrap(model)
    pruned_copies = (attach(sharing_copy(inner), schedule) for schedule in schedules)
    copies = [sharing_copy(inner), *pruned_copies]
    clock = stopwatch(images.device)
    turns: list[list[float]] = []
    with _room_for(model, len(copies)):
        samplers = [partial(clock, partial(_compiled_like(model, copy), images)) for copy in copies]
        for turn in in_turn(samplers, rounds):
            turns.append(turn)
            if len(turns) >= _ROUNDS and all(_is_precise(ratios) for ratios in _speedups(turns)):
                break
    milliseconds = [1e3 * quartiles(times)[1] for times in zip(*turns, strict=True)]
    return [
        Timed(milliseconds[0], pruned, quartiles(ratios))
        for pruned, ratios in zip(milliseconds[1:], _speedups(turns), strict=True)
    ]


def time_schedule(
    model: nn.Module, schedule: Schedule, images: Tensor, rounds: int = _ROUNDS
) -> Timed:
    """Time the model pruned by the schedule and unpruned, in turn."""
    return time_schedules(model, [schedule], images, rounds)[0]


def _speedups(turns: Sequence[Sequence[float]]) -> Iterator[list[float]]:
    """Yield the speedups of each pruned model, turn by turn."""
    for column in range(1, len(turns[0])):
        yield [turn[0] / turn[column] for turn in turns]


def _is_precise(ratios: list[float]) -> bool:
    low, middle, high = quartiles(ratios)
    return high - low <= SURE * middle * math.sqrt(len(ratios))


def _compiled_like(model: nn.Module, copy: nn.Module) -> nn.Module:
    """Compile the copy if the model is: with the same backend and options, or the defaults if the
    model was compiled in place, which hides them."""
    if hasattr(model, "_orig_mod"):
        wrapped: nn.Module = type(model)(copy, model.dynamo_ctx)
        return wrapped
    if model._compiled_call_impl is not None:
        copy.compile()
    return copy


def _room_for(model: nn.Module, count: int) -> AbstractContextManager[Any]:
    """Let torch compile every copy as if it were the only one. Else it would compile one graph for
    all numbers of tokens, which is slower, and beyond its limit run copies uncompiled."""
    if not hasattr(model, "_orig_mod") and model._compiled_call_impl is None:
        return nullcontext()
    import torch._dynamo

    limit = torch._dynamo.config.recompile_limit + (_ATTEMPTS + 2) * count
    room: AbstractContextManager[Any] = torch._dynamo.config.patch(
        automatic_dynamic_shapes=False, recompile_limit=limit
    )
    return room


def cost_for(
    model: nn.Module, budget: TimeBudget, images: Tensor, method: Method | str | None = None
) -> tuple[float, Timed]:
    """Return the cost at which a method meets the budget, and what was measured.

    Raises ValueError, with the best that was measured, if the budget cannot be met within 5 %.
    """
    (reached,) = reach([budget], [SpeedDial(model, resolve(method or DEFAULT), images)])
    if reached.failure:
        raise ValueError(reached.failure)
    return reached.cost, reached.timed


def reach(
    budgets: Sequence[TimeBudget],
    dials: Sequence[SpeedDial],
    say: Callable[[str], None] = lambda line: None,
) -> list[Reached]:
    """Find the cost at which every method meets every budget, all of them timed in turn.

    Args:
        budgets: The results are in this order, and for each budget in the order of the dials.
        dials: The methods, all with the same model and images.
        say: Receives messages about the progress.

    The `failure` of a result says by how much a budget was missed, if it was by more than 5 %.
    """
    model, images = dials[0].model, dials[0].images
    say("measuring how fast the methods can be")
    _time(model, images, [(dial, cost) for dial in dials for cost in dial.first_costs()])
    pairs = [(budget, dial) for budget in budgets for dial in dials]
    unmet = [(budget, dial) for budget, dial in pairs if not dial.why_not(budget)]
    for attempt in range(_ATTEMPTS):
        if not unmet:
            break
        say(f"measuring {len(unmet)} schedules, attempt {attempt + 1}")
        guesses = [(dial, dial.guess(budget)) for budget, dial in unmet]
        _time(model, images, guesses, rounds=_MOST_ROUNDS)
        unmet = [(budget, dial) for budget, dial in unmet if not dial.meets(budget)]
    return [dial.result(budget) for budget, dial in pairs]


def _time(
    model: nn.Module,
    images: Tensor,
    guesses: Sequence[tuple[SpeedDial, float]],
    rounds: int = _ROUNDS,
) -> None:
    """Time all guesses in turn, and store the timings in the dials."""
    solved = [(dial, cost, schedule) for dial, cost in dict.fromkeys(guesses)
             if (schedule := dial.schedule(cost)) is not None]  # fmt: skip
    timings = time_schedules(model, [schedule for _, _, schedule in solved], images, rounds)
    for (dial, cost, _), timed in zip(solved, timings, strict=True):
        dial.timings[cost] = timed
        if rounds > _ROUNDS:
            dial.precise[cost] = timed


class SpeedDial:
    """A method that is set by speed: the costs that were timed so far, and which to try next."""

    def __init__(self, model: nn.Module, method: Method, images: Tensor) -> None:
        self.model, self.method, self.images = model, method, images
        self.timings: dict[float, Timed] = {}
        self.precise: dict[float, Timed] = {}  # those with enough rounds
        self._schedules: dict[float, Schedule | None] = {}
        self.lowest = self._find_lowest()

    def schedule(self, cost: float) -> Schedule | None:
        """Return the schedule for a cost; None if there is none, as tokens are whole."""
        if cost not in self._schedules:
            try:
                self._schedules[cost] = schedule_for(
                    self.model, cost=cost, method=self.method, images=self.images
                )
            except ValueError:
                self._schedules[cost] = None
        return self._schedules[cost]

    def _find_lowest(self) -> float:
        for step in range(3, 20):
            if self.schedule(step / 20) is not None:
                return step / 20
        # Let the solver say why the method cannot prune this model.
        schedule_for(self.model, cost=0.95, method=self.method, images=self.images)
        raise ValueError(f"no schedule of {name_of(self.method)} prunes this model")

    def first_costs(self) -> tuple[float, float]:
        """Return the lowest cost and one in the middle, to start with."""
        return self.lowest, self._possible((1 + self.lowest) / 2)

    def guess(self, budget: TimeBudget) -> float:
        """Return the cost at which the line through the measured points meets the budget.

        Uses rough measurements until there is a precise one. Below all points, extrapolate the line
        from the unpruned model through the lowest.
        """
        target = 1 / budget.wanted(self.timings[self.lowest])
        points = [*_rising(self.precise or self.timings), (1.0, 1.0)]
        for (low, fast), (high, slow) in pairwise(points):
            if fast <= target <= slow and slow > fast:
                guess = low + (high - low) * (target - fast) / (slow - fast)
                break
        else:
            low, fast = points[0]
            guess = 1 - (1 - low) * (1 - target) / max(1 - fast, SURE)
        return self._possible(min(max(guess, self.lowest), 0.99))

    def _possible(self, cost: float) -> float:
        """Return the nearest cost that there is a schedule for."""
        for step in range(6):
            for near in (cost - 0.005 * step, cost + 0.005 * step):
                if self.schedule(near) is not None:
                    return near
        return self.lowest

    def meets(self, budget: TimeBudget) -> bool:
        return any(budget.miss(timed) <= TOLERANCE for timed in self.precise.values())

    def why_not(self, budget: TimeBudget) -> str:
        """Say why the method cannot meet the budget at all; "" if it may."""
        best = self._fastest()
        fastest, target = self.timings[best], f"{budget} at batch {len(self.images)}"
        if budget.wanted(fastest) <= 1:
            return f"{target} needs no pruning: measured {fastest}"
        if fastest.speedup < budget.wanted(fastest) * (1 - TOLERANCE):
            return (
                f"{target} cannot be reached by {name_of(self.method)}; the fastest measured here, "
                f"at {best:.2f} of the cost: {fastest}"
            )
        return ""

    def _fastest(self) -> float:
        return max(self.timings, key=lambda cost: self.timings[cost].speedup)

    def result(self, budget: TimeBudget) -> Reached:
        """Return the cost nearest to the budget; the fastest if it is out of reach."""
        failure, cost = self.why_not(budget), self._fastest()
        if not failure:
            cost = min(self.precise, key=lambda cost: budget.miss(self.precise[cost]))
            try:
                budget.check(self.precise[cost])
            except ValueError as error:
                failure = str(error)
        schedule = self.schedule(cost)
        assert schedule is not None
        return Reached(budget, cost, schedule, self.timings[cost], failure)


def _rising(timings: dict[float, Timed]) -> list[tuple[float, float]]:
    """Return costs and times, both relative to the unpruned model. Times never fall with cost: that
    would be noise."""
    costs = sorted(timings)
    times = accumulate((1 / timings[cost].speedup for cost in costs), max)
    return list(zip(costs, times, strict=True))
