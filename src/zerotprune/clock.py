"""The clock: time calls in turn, so that noise affects all alike, and compare their timings."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

#: seconds of a sample: long enough that clock and scheduler do not matter
SAMPLE = 0.02

T = TypeVar("T")
Call = Callable[[], object]
Clock = Callable[[Call, int], float]  # a call and how often to repeat it → seconds in total


class Timings(list[float]):
    """Seconds of one call: a sample from every round.

    >>> unpruned, pruned = Timings([0.4, 0.6, 0.5]), Timings([0.2, 0.2, 0.25])
    >>> pruned.median, pruned.speedup(unpruned), pruned.speedup_quartiles(unpruned)
    (0.2, 2.5, (2.0, 2.0, 2.5))
    """

    @property
    def median(self) -> float:
        return quartiles(self)[1]

    @property
    def spread(self) -> float:
        """Seconds between the quartiles, with half of the rounds between them."""
        low, _, high = quartiles(self)
        return high - low

    def speedup(self, reference: Timings) -> float:
        """Return the speedup over the reference, by their medians."""
        return reference.median / self.median

    def speedup_quartiles(self, reference: Timings) -> tuple[float, float, float]:
        """Return lower quartile, median and upper quartile of the speedup, round by round."""
        return quartiles([other / this for this, other in zip(self, reference, strict=True)])


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def now(device: torch.device | str) -> float:
    """Return the time once the device has finished its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def stopwatch(device: torch.device | str) -> Clock:
    """Return a clock of wall time until the device has finished all calls."""

    def clock(call: Call, repeat: int) -> float:
        call()  # warm up: memory, caches and compiled code are those of another call
        started = now(device)
        for _ in range(repeat):
            call()
        return now(device) - started

    return clock


def race(
    calls: Sequence[T], rounds: int, clock: Callable[[T, int], float]
) -> Iterator[list[Timings]]:
    """Time calls in turn, and yield their timings so far after every round.

    Leave the loop once they are enough; `*_, timings = race(…)` runs all rounds. Each sample
    repeats its call as often as the quickest call needs to fill `SAMPLE`. The first sample of each
    call finds this out and warms up; it does not count.

    Args:
        calls: What to time, in the form that the clock takes.
        rounds: How many samples to take of each.
        clock: Takes a call and how often to repeat it, returns the seconds in total.
    """
    quickest = min((clock(call, 1) for call in calls), default=SAMPLE)
    repeat = max(1, math.ceil(SAMPLE / quickest))
    timings = [Timings() for _ in calls]
    for _ in range(rounds):
        samples = [clock(call, repeat) / repeat for call in calls]  # a round counts once it is over
        for taken, seconds in zip(timings, samples, strict=True):
            taken.append(seconds)
        yield timings


def room_for(count: int) -> AbstractContextManager[Any]:
    """Let torch compile this many more copies of a model, each as if it were the only one.

    Else it would compile one graph for all numbers of tokens, which is slower, and run copies
    beyond its limit uncompiled.
    """
    import torch._dynamo

    config = torch._dynamo.config
    room: AbstractContextManager[Any] = config.patch(
        automatic_dynamic_shapes=False, recompile_limit=config.recompile_limit + count
    )
    return room
