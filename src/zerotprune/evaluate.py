"""Accuracy and speed of several contenders on the same pictures, measured side by side."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .block import Method
from .methods import ZeroTPrune
from .pruning import gmacs, prune_, restore_
from .schedule import Schedule


@dataclass(frozen=True)
class Contender:
    """One way to run the model. A schedule without stages is the unpruned model."""

    name: str
    schedule: Schedule = field(default_factory=Schedule)
    method: Method = field(default_factory=ZeroTPrune)


@dataclass
class Result:
    """What one contender did, picture by picture and batch by batch."""

    contender: Contender
    gmacs: float
    hits: list[bool] = field(default_factory=list)
    seconds_per_image: list[float] = field(default_factory=list)

    @property
    def top1(self) -> float:
        """In percent."""
        return 100 * statistics.fmean(self.hits)

    @property
    def images_per_second(self) -> float:
        return 1 / statistics.median(self.seconds_per_image)

    def change(self, reference: Result) -> tuple[float, float]:
        """Difference in top-1 to a reference in points, and its paired standard error."""
        pairs = zip(self.hits, reference.hits, strict=True)
        return paired_difference([int(own) - int(other) for own, other in pairs])


def paired_difference(differences: Sequence[int]) -> tuple[float, float]:
    """Mean of per-picture differences and the standard error of that mean, both times 100."""
    count = len(differences)
    mean = statistics.fmean(differences)
    variance = sum((each - mean) ** 2 for each in differences) / max(count - 1, 1)
    return 100 * mean, 100 * math.sqrt(variance / count)


def compare(
    model: nn.Module,
    contenders: Sequence[Contender],
    batches: Iterable[tuple[Tensor, Tensor]],
    advance: Callable[[int], None] = lambda pictures: None,
) -> list[Result]:
    """Run every contender on every batch, turn by turn, so that a noisy machine is as noisy for
    all of them. The model is unpruned afterwards.

    Speed is that of the model alone, the median over batches; the first batch warms up.
    """
    results = [Result(each, gmacs(model, each.schedule, each.method)) for each in contenders]
    try:
        for number, (images, labels) in enumerate(batches):
            if number == 0:
                for result in results:
                    _timed(model, result.contender, images)
            for result in results:
                logits, seconds = _timed(model, result.contender, images)
                result.hits += (logits.argmax(dim=-1) == labels).tolist()
                result.seconds_per_image.append(seconds / len(images))
            advance(len(images))
    finally:
        restore_(model)
    return results


def _timed(model: nn.Module, contender: Contender, images: Tensor) -> tuple[Tensor, float]:
    prune_(model, contender.schedule, contender.method)
    with torch.inference_mode():
        started = _now(images.device)
        logits: Tensor = model(images)
        return logits, _now(images.device) - started


def _now(device: torch.device) -> float:
    """The clock, once the device has finished all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
