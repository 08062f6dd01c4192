"""Milliseconds for the image on the page: pruned and not, turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ..measure.clock import now, quartiles
from ..measure.modes import sharing_copy
from ..pruning import prune_
from .view_model import ViewModel
from .worker import Worker

ROUNDS = 15
ENOUGH = 5  # rounds, after which the time is the limit
SECONDS = 1.5


def time_methods(
    shown: ViewModel, worker: Worker, stale: Callable[[], bool] = lambda: False
) -> list[float] | None:
    """The median of each: first the unpruned model, then the methods. One image, float32.

    The worker is asked for one call after the other, so that whoever moves a slider meanwhile waits
    for one call at most. None as soon as `stale` says that the page shows something else by now.
    """
    models = worker.run(partial(_build_models, shown))
    seconds: list[list[float]] = [[] for _ in models]
    started = now("cpu")
    for turn in range(ROUNDS + 1):
        for model, taken in zip(models, seconds, strict=True):
            if stale():
                return None
            took = worker.run(partial(_time_call, model, shown.input.tensor))
            if turn:  # the first call of each finds caches cold
                taken.append(took)
        if turn >= ENOUGH and now("cpu") - started > SECONDS:
            break
    return [1e3 * quartiles(taken)[1] for taken in seconds]


def _build_models(shown: ViewModel) -> list[nn.Module]:
    whole = shown.entry.model
    pruned = [prune_(sharing_copy(whole), each.schedule) for each in shown.methods]
    return [sharing_copy(whole), *pruned]


@torch.inference_mode()
def _time_call(model: nn.Module, image: Tensor) -> float:
    started = now("cpu")
    model(image)
    return now("cpu") - started
