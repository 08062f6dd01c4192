"""Accuracy, cost and speed of several contenders on the same pictures, measured side by side."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets.contenders import Contender, mean_gmacs
from ..cost import Convention
from ..plan import Plan
from ..pruning import prune_, restore_
from ..tracing import survivors


@dataclass
class Result:
    """What one contender did, picture by picture and batch by batch."""

    contender: Contender
    plan: Plan
    index: list[int] = field(default_factory=list)  # which pictures
    hits: list[bool] = field(default_factory=list)  # was the right class on top?
    hits5: list[bool] = field(default_factory=list)  # … among the first five?
    outputs: list[Tensor] = field(default_factory=list)  # kept only where asked for
    seconds_per_image: list[float] = field(default_factory=list)
    kept: list[list[Tensor]] = field(default_factory=list)  # of methods that adapt to the picture
    peak_memory: int = 0  # bytes on the device; 0 on a CPU, which does not count them

    @property
    def top1(self) -> float:
        """In percent."""
        return 100 * statistics.fmean(self.hits)

    @property
    def top1_error(self) -> float:
        """Standard error of top-1, in points."""
        share = statistics.fmean(self.hits)
        return 100 * math.sqrt(share * (1 - share) / len(self.hits))

    @property
    def top5(self) -> float:
        return 100 * statistics.fmean(self.hits5)

    @property
    def images_per_second(self) -> float:
        return 1 / statistics.median(self.seconds_per_image)

    def gmacs(self, convention: Convention = "full") -> float:
        """By closed form, or the measured mean where it depends on the picture."""
        if self.kept:
            return mean_gmacs(self.plan, self.kept, convention)
        return self.plan.gmacs(convention)

    def change(self, reference: Result) -> tuple[float, float]:
        """Difference in top-1 to a reference in points, and its paired standard error."""
        pairs = zip(self.hits, reference.hits, strict=True)
        return paired_difference([int(own) - int(other) for own, other in pairs])


def paired_difference(differences: Sequence[float]) -> tuple[float, float]:
    """Mean of per-picture differences and the standard error of that mean, both times 100."""
    count = len(differences)
    mean = statistics.fmean(differences)
    variance = sum((each - mean) ** 2 for each in differences) / max(count - 1, 1)
    return 100 * mean, 100 * math.sqrt(variance / count)


@dataclass(frozen=True)
class Setting:
    """Where and in which precision the model runs."""

    device: str = "cpu"
    precision: torch.dtype = torch.float32
    keep_outputs: bool = False  # for probes, which need the features
    options: Mapping[str, Any] = field(default_factory=dict)  # what else `prune_` is told


Batch = tuple[Tensor, Tensor, Tensor]  # pictures, labels, and which pictures they are


def compare(
    model: nn.Module,
    contenders: Sequence[Contender],
    batches: Iterable[Batch],
    advance: Callable[[list[Result]], None] = lambda results: None,
    setting: Setting | None = None,
) -> list[Result]:
    """Run every contender on every batch, turn by turn, so that a noisy machine is as noisy for
    all of them. The model is unpruned afterwards.

    Speed is that of the model alone, the median over batches; the first batch warms up. Stopped by
    Ctrl-C, it gives back what all contenders have finished.
    """
    setting = setting or Setting()
    geometry = backbone(model).geometry
    results = [Result(each, Plan(each.schedule, each.method, geometry)) for each in contenders]
    warm = False
    try:
        for images, labels, index in batches:
            images = images.to(setting.device, setting.precision)
            if not warm:
                for result in results:
                    _timed(model, result, images, setting)
                warm = True
            turn = [_timed(model, result, images, setting) for result in results]
            for result, (outputs, seconds, kept) in zip(results, turn, strict=True):
                _note(result, outputs.float().cpu(), labels, index, setting.keep_outputs)
                result.seconds_per_image.append(seconds / len(images))
                result.kept += kept
            advance(results)
    except KeyboardInterrupt:
        if not results[0].index:
            raise
    finally:
        restore_(model)
    return results


def _note(
    result: Result, outputs: Tensor, labels: Tensor, index: Tensor, keep_outputs: bool
) -> None:
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    right = best == labels.unsqueeze(-1)
    result.index += index.tolist()
    result.hits += right[:, 0].tolist()
    result.hits5 += right.any(dim=-1).tolist()
    if keep_outputs:
        result.outputs.append(outputs)


def _timed(
    model: nn.Module, result: Result, images: Tensor, setting: Setting
) -> tuple[Tensor, float, list[list[Tensor]]]:
    prune_(model, result.contender.schedule, result.contender.method, **setting.options)
    on_gpu = images.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(images.device)
    watch: AbstractContextManager[list[list[Tensor]]] = nullcontext([])
    if result.contender.method.adaptive and result.plan.stages:
        watch = survivors(model)
    with torch.inference_mode(), watch as kept:
        started = _now(images.device)
        outputs: Tensor = model(images)
        seconds = _now(images.device) - started
    if on_gpu:
        peak = torch.cuda.max_memory_allocated(images.device)
        result.peak_memory = max(result.peak_memory, peak)
    return outputs, seconds, kept


def _now(device: torch.device) -> float:
    """The clock, once the device has finished all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
