"""A budget in speed: find the cost at which a pruned model has the speedup, by measuring.

Pruned models and the unpruned one are timed in turn, so that noise affects all alike: on this
device, at this batch size and precision, eager or compiled as the model is. Time is nearly linear
in cost: time two costs, then the one that the line between them predicts, and repeat until the
budget is met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from ..backbones import unwrap
from ..clock import Timings, race, room_for, stopwatch
from ..method import Method, name_of, resolve
from ..methods import DEFAULT
from ..safety.ranges import check_number
from ..schedule import Schedule
from ..surgery import attach, sharing_copy
from .solving import schedule_for

#: how far the measured speed may be from the budget, relative to the budget
TOLERANCE = 0.05
#: how far apart the quartiles of the speedup may be before the machine counts as too busy
SPREAD = 0.3
#: the relative error of a median at which no more rounds are run
SURE = 0.01
#: the highest cost that is tried
_LEAST_PRUNED = 0.99
_ROUNDS = 7  # of a rough measurement
_MOST_ROUNDS = 27  # of a precise one
_ATTEMPTS = 5


@dataclass(frozen=True)
class Timed:
    """A pruned model and the unpruned one, timed in turn."""

    unpruned: Timings
    pruned: Timings

    @property
    def speedups(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile."""
        return self.pruned.speedup_quartiles(self.unpruned)

    @property
    def speedup(self) -> float:
        return self.speedups[1]

    @property
    def is_precise(self) -> bool:
        low, middle, high = self.speedups
        return high - low <= SURE * middle * math.sqrt(len(self.pruned))

    def __str__(self) -> str:
        low, middle, high = self.speedups
        unpruned, pruned = (1e3 * taken.median for taken in (self.unpruned, self.pruned))
        return (
            f"unpruned {unpruned:.4g} ms, pruned {pruned:.4g} ms, {middle:.2f} times as fast "
            f"(quartiles {low:.2f} to {high:.2f})"
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
        for name, value in (("speedup", self.speedup), ("latency_ms", self.latency_ms)):
            if value is not None:
                check_number(name, value)

    def wanted(self, timed: Timed) -> float:
        """Return the budget as a speedup, on the machine that `timed` comes from."""
        if self.speedup is not None:
            return self.speedup
        assert self.latency_ms is not None
        return 1e3 * timed.unpruned.median / self.latency_ms

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
    # The models of all attempts are copies of one model.
    room = room_for((_ATTEMPTS + 2) * len(copies)) if _is_compiled(model) else nullcontext()
    with room:
        calls = [partial(_compiled_like(model, copy), images) for copy in copies]
        for unpruned, *pruned in race(calls, rounds, stopwatch(images.device)):
            timed = [Timed(unpruned, taken) for taken in pruned]
            if len(unpruned) >= _ROUNDS and all(one.is_precise for one in timed):
                break
    return timed


def time_schedule(
    model: nn.Module, schedule: Schedule, images: Tensor, rounds: int = _ROUNDS
) -> Timed:
    """Time the model pruned by the schedule and unpruned, in turn."""
    return time_schedules(model, [schedule], images, rounds)[0]


def _is_compiled(model: nn.Module) -> bool:
    return hasattr(model, "_orig_mod") or model._compiled_call_impl is not None


def _compiled_like(model: nn.Module, copy: nn.Module) -> nn.Module:
    """Compile the copy if the model is: with the same backend and options, or the defaults if the
    model was compiled in place, which hides them."""
    if hasattr(model, "_orig_mod"):
        wrapped: nn.Module = type(model)(copy, model.dynamo_ctx)
        return wrapped
    if _is_compiled(model):
        copy.compile()
    return copy


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
    tolerance: float = TOLERANCE,
) -> list[Reached]:
    """Find the cost at which every method meets every budget, all of them timed in turn.

    Args:
        budgets: The results are in this order, and for each budget in the order of the dials.
        dials: The methods, all with the same model and images.
        say: Receives messages about the progress.
        tolerance: How near to a budget further attempts are made to come.

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
        unmet = [(budget, dial) for budget, dial in unmet if not dial.meets(budget, tolerance)]
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
        """Return the schedule for a cost; None if no whole numbers of tokens come to it."""
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
        from the unpruned model through the lowest. After two guesses that were too fast, measure
        where that line ends: the least pruned model may be faster than the unpruned one.
        """
        target = 1 / budget.wanted(self.timings[self.lowest])
        points = _rising(self.precise or self.timings)
        if len(self.precise) >= 2 and target > points[-1][1]:
            return self._possible(_LEAST_PRUNED)
        points.append((1.0, 1.0))
        for (low, fast), (high, slow) in pairwise(points):
            if fast <= target <= slow and slow > fast:
                guess = low + (high - low) * (target - fast) / (slow - fast)
                break
        else:
            low, fast = points[0]
            guess = 1 - (1 - low) * (1 - target) / max(1 - fast, SURE)
        return self._possible(min(max(guess, self.lowest), _LEAST_PRUNED))

    def _possible(self, cost: float) -> float:
        """Return the nearest cost that there is a schedule for."""
        for step in range(6):
            for near in (cost - 0.005 * step, cost + 0.005 * step):
                if self.schedule(near) is not None:
                    return near
        return self.lowest

    def meets(self, budget: TimeBudget, tolerance: float) -> bool:
        return self._exceeds(budget) or any(
            budget.miss(timed) <= tolerance for timed in self.precise.values()
        )

    def _exceeds(self, budget: TimeBudget) -> bool:
        """Return whether even the least pruned model is faster than the budget asks for: on a GPU a
        pruned model has a faster patch embedding, too."""
        cost = max(self.precise, default=0.0)
        least = self._possible(_LEAST_PRUNED)
        return cost >= least and self.precise[cost].speedup >= budget.wanted(self.precise[cost])

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
                if not self._exceeds(budget):
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
