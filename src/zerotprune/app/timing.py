"""Milliseconds for the picture on the screen: pruned and not, turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ..measure.modes import sharing_copy
from ..pruning import prune_
from .view_model import Screen
from .worker import Machine

ROUNDS = 15
ENOUGH = 5  # rounds, after which the time is the limit
SECONDS = 1.5


def race(
    screen: Screen, machine: Machine, stale: Callable[[], bool] = lambda: False
) -> list[float] | None:
    """The median of each: first the unpruned model, then the sides. One picture at a time, float32.

    The machine is asked for one call after the other, so that whoever turns a dial meanwhile waits
    for one call at most. None as soon as `stale` says that the screen is no longer what it was.
    """
    models = machine.do(partial(_ways, screen))
    seconds: list[list[float]] = [[] for _ in models]
    started = time.perf_counter()
    for turn in range(ROUNDS + 1):
        for model, found in zip(models, seconds, strict=True):
            if stale():
                return None
            took = machine.do(partial(_call, model, screen.sight.image))
            if turn:  # the first call of each finds caches cold
                found.append(took)
        if turn >= ENOUGH and time.perf_counter() - started > SECONDS:
            break
    return [1e3 * statistics.median(found) for found in seconds]


def _ways(screen: Screen) -> list[nn.Module]:
    models = [sharing_copy(screen.offer.model)]
    for side in screen.sides:
        pruned = sharing_copy(screen.offer.model)
        models.append(prune_(pruned, side.contender.schedule, side.contender.method))
    return models


@torch.inference_mode()
def _call(model: nn.Module, image: Tensor) -> float:
    started = time.perf_counter()
    model(image)
    return time.perf_counter() - started
