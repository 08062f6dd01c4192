"""A budget in time made one in GMACs, by measuring on this machine at this batch size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..block import Method
from ..pruning import gmacs, prune_, restore_, schedule_for
from ..schedule import Schedule

_ROUNDS = 7
_STEPS = 7


@dataclass(frozen=True)
class Timed:
    """Medians of one call each, in milliseconds, measured in turn."""

    unpruned: float
    pruned: float

    @property
    def speedup(self) -> float:
        return self.unpruned / self.pruned


@torch.inference_mode()
def measure(
    model: nn.Module, schedule: Schedule, method: Method, images: Tensor, rounds: int = _ROUNDS
) -> Timed:
    """The pruned model and the unpruned one in turn, so that a noisy machine is as noisy for
    both. The model is unpruned afterwards."""
    times: tuple[list[float], list[float]] = ([], [])
    try:
        for turn in range(rounds + 1):
            for each, held in zip((Schedule(), schedule), times, strict=True):
                prune_(model, each, method)
                started = _now(images)
                model(images)
                seconds = _now(images) - started
                if turn:  # the first warms up
                    held.append(1e3 * seconds)
    finally:
        restore_(model)
    return Timed(*(statistics.median(held) for held in times))


def budget_for(
    model: nn.Module,
    method: Method,
    images: Tensor,
    *,
    speedup: float | None = None,
    latency_ms: float | None = None,
    advance: Callable[[], None] = lambda: None,
) -> tuple[float, Timed]:
    """The GMACs at which schedules of the paper's form take that time, and what they took."""

    def enough(timed: Timed) -> bool:
        if speedup is not None:
            return timed.speedup >= speedup
        assert latency_ms is not None
        return timed.pruned <= latency_ms

    full = gmacs(model)
    low, fastest = _smallest(model, method)
    timed = measure(model, fastest, method, images)
    if not enough(timed):
        wanted = f"{speedup:.3g} times the speed" if speedup else f"{latency_ms:.4g} ms"
        raise ValueError(
            f"{wanted} at batch {len(images)} cannot be reached: measured on this machine, the "
            f"unpruned model takes {timed.unpruned:.4g} ms and a schedule of {low * full:.4g} "
            f"GMACs {timed.pruned:.4g} ms ({timed.speedup:.3g} times as fast)"
        )
    if speedup is None and latency_ms is not None and timed.unpruned <= latency_ms:
        raise ValueError(
            f"{latency_ms:.4g} ms at batch {len(images)} needs no pruning: measured on this "
            f"machine, the unpruned model takes {timed.unpruned:.4g} ms"
        )
    best, high = (low, timed), 1.0
    for _ in range(_STEPS):
        share = (low + high) / 2
        try:
            timed = measure(
                model, schedule_for(model, keep=share, method=method, tuned=False), method, images
            )
        except ValueError:  # too few tokens to meet just this share
            high = share
            continue
        advance()
        if enough(timed):
            low, best = share, (share, timed)
        else:
            high = share
    return best[0] * full, best[1]


def _smallest(model: nn.Module, method: Method) -> tuple[float, Schedule]:
    """The smallest of a row of shares that the paper's form can meet."""
    shares: Sequence[float] = [step / 20 for step in range(3, 20)]
    for share in shares:
        try:
            return share, schedule_for(model, keep=share, method=method, tuned=False)
        except ValueError:
            continue
    raise ValueError("no schedule of the paper's form prunes this model")


def _now(images: Tensor) -> float:
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return time.perf_counter()
