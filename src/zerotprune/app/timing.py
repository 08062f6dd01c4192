"""Milliseconds for the image on the page: pruned and not, turn by turn.

A small model spends as long on starting its operations as on computing one image, pruned or not:
it is timed on as many copies of the image at once as take about as long as one of a larger model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..measure.clock import now, quartiles
from ..pruning import prune_
from ..surgery import sharing_copy
from .view_model import ViewModel
from .worker import Worker

ROUNDS = 15
ENOUGH = 5  # rounds, after which the time is the limit
SECONDS = 1.5
SECONDS_A_CALL = 0.16  # of the unpruned model, about: a batch is no larger
LARGEST_BATCH = 8


class Times(NamedTuple):
    """Milliseconds for an image of a batch: of the unpruned model, then of the methods."""

    milliseconds: list[float]
    batch: int


def time_methods(
    shown: ViewModel, worker: Worker, stale: Callable[[], bool] = lambda: False
) -> Times | None:
    """The median of each: first the unpruned model, then the methods. float32.

    The worker is asked for one call after the other, so that whoever moves a slider meanwhile waits
    for one call at most. None as soon as `stale` says that the page shows something else by now.
    """
    models = worker.run(partial(_build_models, shown))
    image, seconds = shown.input.tensor, list[list[float]]([] for _ in models)
    single = 0.0
    for _ in range(2):  # the first call finds caches cold
        if stale():
            return None
        single = worker.run(partial(_time_call, models[0], image))
    batch = choose_batch(single)
    images, started = image.expand(batch, -1, -1, -1).contiguous(), now("cpu")
    for turn in range(ROUNDS + 1):
        for model, taken in zip(models, seconds, strict=True):
            if stale():
                return None
            took = worker.run(partial(_time_call, model, images))
            if turn:  # cold likewise
                taken.append(took)
        if turn >= ENOUGH and now("cpu") - started > SECONDS:
            break
    return Times([1e3 * quartiles(taken)[1] / batch for taken in seconds], batch)


def choose_batch(seconds: float) -> int:
    """How many images at once, where one alone takes the unpruned model so many seconds.

    >>> [choose_batch(seconds) for seconds in (0.01, 0.05, 0.5)]
    [8, 3, 1]
    """
    return min(LARGEST_BATCH, max(1, int(SECONDS_A_CALL / seconds)))


def _build_models(shown: ViewModel) -> list[nn.Module]:
    whole = shown.entry.model
    pruned = [prune_(sharing_copy(whole), each.schedule) for each in shown.methods]
    return [sharing_copy(whole), *pruned]


@torch.inference_mode()
def _time_call(model: nn.Module, images: Tensor) -> float:
    started = now("cpu")
    model(images)
    return now("cpu") - started
