"""The clock: seconds until the device has finished, and samples taken in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

#: seconds of a sample: long enough that clock and scheduler do not matter
SAMPLE = 0.02

Call = Callable[[], object]
Clock = Callable[[Call, int], float]  # a call and how often to repeat it → seconds in total
Sampler = Callable[[int], float]  # a clock for one call


def now(device: torch.device | str) -> float:
    """Return the time, once the device has finished its work."""
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


def in_turn(samplers: Sequence[Sampler], rounds: int) -> Iterator[list[float]]:
    """Yield, round by round, the seconds of one call of each: noise then affects all alike.

    Each sample repeats its call as often as the quickest call needs to fill `SAMPLE`.
    """
    quickest = min((sampler(1) for sampler in samplers), default=SAMPLE)
    repeat = max(1, math.ceil(SAMPLE / quickest))
    for _ in range(rounds):
        yield [sampler(repeat) / repeat for sampler in samplers]


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high
