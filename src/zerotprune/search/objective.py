"""Score schedules on images in memory. Each run starts at the schedule's first stage."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..backbones import Backbone, backbone
from ..measure.accuracy import divergence
from ..measure.evaluation import TEMPERATURE
from ..method import Method
from ..pruning import prune_, restore_
from ..schedule import Schedule
from ..shapes import Bool, Float, Int

#: All but cuDNN's attention: it makes a plan for each token count that is new to it, and schedules
#: bring new ones all the time.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
              SDPBackend.OVERRIDEABLE]  # fmt: skip
_NEVER = -1e4  # a logit without probability; infinity would make differences NaN


class Measured(Protocol):
    """A measured schedule, ranked by top-1 if labels are known, else by divergence."""

    @property
    def top1(self) -> float | None: ...
    @property
    def mean_kl(self) -> float: ...


def value(measured: Measured) -> float:
    """Return the value that a search optimizes."""
    return measured.mean_kl if measured.top1 is None else measured.top1


def rank_key(measured: Measured) -> tuple[float, float]:
    """Return a sort key, the best first. Of schedules with equal top-1, the nearest to the unpruned
    model is the best."""
    return -(measured.top1 or 0.0), measured.mean_kl


@dataclass(frozen=True)
class Outcome:
    """One schedule on some images, image by image."""

    kl: Float[Tensor, " images"]  # KL(unpruned ‖ pruned) of the predictions
    same: Bool[Tensor, " images"]  # whether the top prediction is the unpruned model's
    hits: Bool[Tensor, " images"] | None  # whether it is right, if labels are known

    @cached_property
    def top1(self) -> float | None:
        """In percent, as all shares here."""
        return None if self.hits is None else 100 * _mean(self.hits)

    @cached_property
    def mean_kl(self) -> float:
        mean = _mean(self.kl)
        return mean if math.isfinite(mean) else math.inf  # an overflow is infinitely far off

    @cached_property
    def agreement(self) -> float:
        return 100 * _mean(self.same)

    @property
    def scores(self) -> Float[Tensor, " images"]:
        """Scores, where more is better: hits in points, or the negative KL."""
        return -self.kl.double() if self.hits is None else 100 * self.hits.double()


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


@dataclass(frozen=True)
class Stack:
    """Images as the model takes them, in batches, and their labels if they are known."""

    images: list[Tensor]
    labels: list[Int[Tensor, " batch"]] | None

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.images)


class Objective:
    """Score schedules on one half of the images, against the unpruned model's outputs.

    Before the first stage, the inputs of a block are the same for all schedules. They are cached
    for as many blocks as fit into `memory` bytes, earliest first, where most schedules start.
    """

    def __init__(self, model: nn.Module, method: Method, stack: Stack, memory: float) -> None:
        self.model, self.method, self.count = restore_(model), method, len(stack)
        vit = backbone(model)
        self._midway, self._depth = vit.midway(), vit.geometry.depth
        self._labels = None if stack.labels is None else torch.cat(stack.labels).cpu()
        values = len(stack) * vit.geometry.tokens * vit.geometry.dim
        fitting = min(self._depth - 1, int(memory // (values * stack.images[0].element_size())))
        self.cached_blocks = 0 if self._midway is None else fitting
        #: for each batch the inputs of blocks 1, 2, …, or the images alone
        self._inputs: list[list[Tensor]] = []
        outputs = []
        with torch.inference_mode(), sdpa_kernel(_ATTENTION):
            for images in stack.images:
                logits, inputs = _record(model, vit, images, self.cached_blocks)
                outputs.append(logits)
                self._inputs.append(inputs or [images])
        #: the features of every image, from a model without a head
        self._features = None if vit.outputs else _normalize(outputs)
        self._reference = self._read(outputs)

    def outputs(self, schedule: Schedule) -> list[Tensor]:
        """Return the pruned model's outputs, batch by batch."""
        prune_(self.model, schedule.by(self.method))
        acting = [stage.block for stage in schedule.stages if stage.prunes]
        first = 1 if self.method.wants_history() else min(acting, default=self._depth)
        block = min(first, self.cached_blocks)
        with torch.inference_mode(), sdpa_kernel(_ATTENTION):
            if self._midway is None or not block:
                return [self.model(images) for [images] in self._inputs]
            return [self._midway(inputs[block - 1], block) for inputs in self._inputs]

    def unpruned(self) -> Outcome:
        return self._outcome(self._reference)

    def __call__(self, schedule: Schedule) -> Outcome:
        return self._outcome(self._read(self.outputs(schedule)))

    def _read(self, outputs: Sequence[Tensor]) -> list[Float[Tensor, "batch answers"]]:
        """Return log-probabilities: of the classes or, for a model without a head, of which other
        image is the nearest neighbor."""
        if self._features is not None:
            likeness = _normalize(outputs) @ self._features.T / TEMPERATURE
            outputs = likeness.fill_diagonal_(_NEVER).split([len(batch) for batch in outputs])
        return [batch.float().log_softmax(dim=-1) for batch in outputs]

    def _outcome(self, answers: Sequence[Tensor]) -> Outcome:
        pairs = list(zip(self._reference, answers, strict=True))
        kl = torch.cat([divergence(expected, actual) for expected, actual in pairs])
        same = torch.cat([one.argmax(dim=-1) == other.argmax(dim=-1) for one, other in pairs])
        hits = None
        if self._labels is not None:
            best = torch.cat([batch.argmax(dim=-1) for batch in answers]).cpu()
            hits = self._labels == (best if self._features is None else self._labels[best])
        return Outcome(kl.cpu(), same.cpu(), hits)


def _normalize(outputs: Sequence[Tensor]) -> Float[Tensor, "images width"]:
    features = torch.cat(list(outputs))
    if features.dim() != 2:
        raise ValueError(
            "a search needs one feature vector for each image of a model without a head, "
            f"this model gives {tuple(features.shape[1:])}"
        )
    return F.normalize(features.float(), dim=-1)


def _record(
    model: nn.Module, vit: Backbone, images: Tensor, kept: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs of the unpruned model, and the inputs of its first blocks."""
    inputs: list[Tensor] = []

    def note(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, _ = vit.call.read(args, kwargs)
        assert isinstance(x, Tensor)
        inputs.append(x)

    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in vit.blocks[:kept]]
    try:
        logits: Tensor = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, inputs


def split_halves(
    labels: Sequence[int] | None, count: int, seed: int
) -> tuple[list[int], list[int]]:
    """Return the indices of the images in each half: as many of each class as can be, otherwise by
    chance.

    Schedules are ranked on the first half and chosen on the second. The halves differ by one image
    at most, and so do the images of one class in them.
    """
    if count < 2:
        raise ValueError(f"a search needs at least two images, one for each half; got {count}")
    rng = random.Random(seed)
    classes: dict[int, list[int]] = {}
    for index in range(count):
        classes.setdefault(0 if labels is None else labels[index], []).append(index)
    paired, single = list[int](), list[int]()
    for _, members in sorted(classes.items()):
        rng.shuffle(members)
        if len(members) % 2:
            single.append(members.pop())
        paired += members
    # Single images go with neighboring classes, which are often alike.
    row = paired + single
    first, second = row[::2], row[1::2]
    for pair in range(len(second)):
        if rng.random() < 0.5:
            first[pair], second[pair] = second[pair], first[pair]
    return sorted(first), sorted(second)
