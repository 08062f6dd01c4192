"""The one clock: seconds until the device has finished, and samples taken in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

#: seconds: a clock and a scheduler are noise to a sample of that length
SAMPLE = 0.02

Call = Callable[[], object]
Clock = Callable[[Call, int], float]  # the seconds that so many calls take together
Sampler = Callable[[int], float]  # the same of one call


def now(device: torch.device | str) -> float:
    """The time, once the device has finished all it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def stopwatch(device: torch.device | str) -> Clock:
    """Wall time until the device has finished all calls: what a user waits for."""

    def clock(call: Call, repeat: int) -> float:
        call()  # another case ran before: find memory, caches and compiled code in place
        started = now(device)
        for _ in range(repeat):
            call()
        return now(device) - started

    return clock


def in_turn(samplers: Sequence[Sampler], rounds: int) -> Iterator[list[float]]:
    """Round by round, seconds of one call of each: a noisy machine is as noisy for all of them.

    A sample repeats the call as often as the quickest needs to fill it, the same for all.
    """
    quickest = min((sampler(1) for sampler in samplers), default=SAMPLE)
    repeat = max(1, math.ceil(SAMPLE / quickest))
    for _ in range(rounds):
        yield [sampler(repeat) / repeat for sampler in samplers]


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high
