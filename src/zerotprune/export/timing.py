"""Models in a runtime, timed in turn: beside the unpruned one, and beside the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from ..measure.clock import in_turn, quartiles, stopwatch
from ..measure.speed import LIMIT, UNPRUNED
from .target import Run
from .writing import Job, Precision


@dataclass(frozen=True)
class Timing:
    """One model in the runtime: pruned, unpruned, or the limit."""

    name: str
    precision: Precision
    size: int  # bytes of its files
    seconds: float  # one call: the median
    spread: float  # between its quartiles
    speedup: float | None  # over the unpruned model in float32
    of_limit: float | None  # share of the speed of slicing in the same precision


def timed(job: Job, cases: Mapping[str, Mapping[Precision, Path]], rounds: int) -> list[Timing]:
    """Every model in every precision, in turn."""
    job.say(f"timing {len(cases) * len(job.precisions)} models in {job.target.runtime}")
    clock, batch = stopwatch("cpu"), job.images[: job.step]
    named = [(name, each, files[each]) for each in job.precisions for name, files in cases.items()]
    calls = [_call(job.target.load(file, job.threads), batch) for _, _, file in named]
    samplers = [partial(clock, call) for call in calls]
    columns = list(zip(*in_turn(samplers, rounds), strict=True))
    timings = []
    for (name, precision, file), seconds in zip(named, columns, strict=True):
        low, middle, high = quartiles(seconds)
        size = sum(each.stat().st_size for each in job.target.written(file))
        timings.append(Timing(name, precision, size, middle, high - low, None, None))
    return [_related(timing, timings) for timing in timings]


def _call(run: Run, batch: Tensor) -> Callable[[], object]:
    call = partial(run, batch)
    for _ in range(2):
        call()
    return call


def _related(timing: Timing, timings: Sequence[Timing]) -> Timing:
    """With its speed beside that of the others."""
    seconds = {(each.name, each.precision): each.seconds for each in timings}
    unpruned, limit = seconds.get((UNPRUNED, "float32")), seconds.get((LIMIT, timing.precision))
    return replace(
        timing,
        speedup=None if unpruned is None else unpruned / timing.seconds,
        of_limit=None if limit is None else limit / timing.seconds,
    )
