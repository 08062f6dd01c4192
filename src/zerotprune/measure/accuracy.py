"""Measure accuracy, cost and speed of several contenders on the same images, side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets.solving import mean_gmacs
from ..clock import Timings, now
from ..cost import Compute, Convention
from ..plan import Plan
from ..schedule import Schedule
from ..scoring.scorer import Backend
from ..shapes import Batch, Float
from ..surgery import attach, restore_, sharing_copy
from ..tokens import Outputs
from ..tracing import survivors


class Mean(NamedTuple):
    """A mean over images and its standard error.

    >>> value, error = Mean.of([1.0, 0.0, 1.0, 0.0])
    >>> f"{value} ± {error:.3f}"
    '0.5 ± 0.289'
    """

    value: float
    error: float

    @classmethod
    def of(cls, values: Float[Tensor, " images"] | Sequence[float], scale: float = 1.0) -> Mean:
        """Return the mean of `values` times `scale`, which is 100 for percent and points."""
        numbers = torch.as_tensor(values, dtype=torch.float64)
        spread = numbers.var(correction=1).item() if len(numbers) > 1 else 0.0
        return cls(scale * numbers.mean().item(), scale * math.sqrt(spread / len(numbers)))

    def to_json(self) -> list[float]:
        return [float(f"{self.value:.5g}"), float(f"{self.error:.3g}")]


def divergence(
    true: Float[Tensor, "*#any choices"], other: Float[Tensor, "*#any choices"]
) -> Float[Tensor, "*any"]:
    """Return KL(true ‖ other) in nats, from log-probabilities, which are broadcast."""
    return (true.exp() * (true - other)).sum(dim=-1).clamp_min(0)


@dataclass(frozen=True)
class Contender:
    """One way to run the model. A schedule without stages is the unpruned model."""

    name: str
    schedule: Schedule = field(default_factory=Schedule)


UNPRUNED = Contender("unpruned")


@dataclass
class Result:
    """What one contender did, image by image and batch by batch."""

    contender: Contender
    plan: Plan
    index: list[int] = field(default_factory=list)  # which images
    hits: list[float] = field(default_factory=list)  # 1 if the right class is on top, else 0
    hits5: list[float] = field(default_factory=list)  # 1 if it is among the first five
    kl: list[float] = field(default_factory=list)  # KL(first contender ‖ this); none for features
    outputs: list[Tensor] = field(default_factory=list)  # with Setting.keep_outputs
    seconds_per_image: Timings = field(default_factory=Timings)  # a round is a batch
    kept: list[list[Tensor]] = field(default_factory=list)  # tokens, of adaptive methods
    peak_memory: int = 0  # bytes on the device; 0 on a CPU, which does not count them

    def rate(self, scores: Tensor, labels: Tensor) -> None:
        """Add the hits of more images, from their scores."""
        best = scores.topk(min(5, scores.shape[-1]), dim=-1).indices
        right = best == labels.unsqueeze(-1)
        self.hits += right[:, 0].tolist()
        self.hits5 += right.any(dim=-1).tolist()

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
        return 1 / self.seconds_per_image.median

    def gmacs(self, convention: Convention = "full", compute: Compute = "all") -> float:
        """Return the cost by closed form, or the measured mean if it depends on the image."""
        if self.kept:
            return mean_gmacs(self.plan, self.kept, convention, compute)
        return self.plan.gmacs(convention, compute=compute)

    def change(self, reference: Result) -> Mean:
        """Return the difference in top-1 in points, and its paired standard error."""
        pairs = zip(self.hits, reference.hits, strict=True)
        return Mean.of([float(hit) - float(other) for hit, other in pairs], scale=100)

    def speedup(self, reference: Result) -> tuple[float, float, float]:
        """Return lower quartile, median and upper quartile of the speedup, batch by batch."""
        return self.seconds_per_image.speedup_quartiles(reference.seconds_per_image)


@dataclass(frozen=True)
class Setting:
    """Where and in which precision the model runs."""

    device: str = "cpu"
    precision: torch.dtype = torch.float32
    keep_outputs: bool = False  # for probes, which need the features
    compute: Compute = "needed"
    backend: Backend = "auto"
    outputs: Outputs = "tokens"
    timed: bool = True  # False: no warm-up, no speed


def compare(
    model: nn.Module,
    contenders: Sequence[Contender],
    batches: Iterable[Batch],
    advance: Callable[[list[Result]], None] = lambda results: None,
    setting: Setting | None = None,
) -> list[Result]:
    """Run every contender on every batch, in turn, so that noise is the same for all of them.

    Speed is that of the model alone, the median over batches; the first batch also warms up. The
    model is unpruned afterwards. Ctrl-C is passed on: images come class by class, so a part of
    them is no result.

    Args:
        model: The model; contenders are copies that share its weights.
        contenders: The first is the reference of KL.
        batches: Images, labels and indices.
        advance: Called with the results after every batch.
        setting: Device, precision and what to record.
    """
    setting = setting or Setting()
    geometry = backbone(model).geometry
    results = [Result(one, Plan(one.schedule, geometry, setting.outputs)) for one in contenders]
    restore_(model)
    copies = [
        attach(sharing_copy(model), one.schedule, setting.compute, setting.backend, setting.outputs)
        for one in contenders
    ]
    for images, labels, index in batches:
        images = images.to(setting.device, setting.precision)
        if setting.timed and not results[0].index:
            for copy, result in zip(copies, results, strict=True):
                _time_batch(copy, result, images)
        turn = [_time_batch(*pair, images) for pair in zip(copies, results, strict=True)]
        reference = turn[0][0].float().log_softmax(dim=-1)
        if not reference.isfinite().all():
            raise ValueError(
                f"the unpruned model's outputs are not all finite in {setting.precision}: "
                "its accuracy cannot be measured"
            )
        for result, (outputs, seconds, kept) in zip(results, turn, strict=True):
            outputs = outputs.float()
            result.index += index.tolist()
            result.rate(outputs, labels.to(outputs.device))
            if setting.keep_outputs:
                result.outputs.append(outputs.cpu())
            else:
                result.kl += divergence(reference, outputs.log_softmax(dim=-1)).tolist()
            if setting.timed:
                result.seconds_per_image.append(seconds / len(images))
            result.kept += kept
        advance(results)
    return results


def _time_batch(
    model: nn.Module, result: Result, images: Tensor
) -> tuple[Tensor, float, list[list[Tensor]]]:
    """Run one batch: return outputs, seconds and remaining tokens, and record the peak memory."""
    on_gpu = images.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(images.device)
    adaptive = result.plan.method.adaptive and result.plan.stages
    watch = survivors(model) if adaptive else nullcontext(list[list[Tensor]]())
    with torch.inference_mode(), watch as kept:
        started = now(images.device)
        outputs: Tensor = model(images)
        seconds = now(images.device) - started
    if on_gpu:
        peak = torch.cuda.max_memory_allocated(images.device)
        result.peak_memory = max(result.peak_memory, peak)
    return outputs, seconds, kept
