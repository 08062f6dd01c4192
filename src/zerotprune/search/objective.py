"""How well a schedule does on images that lie in memory, from its first stage on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..backbones import Backbone, BlockCall, backbone
from ..measure.statistics import divergence
from ..method import Method
from ..pruning import prune_, restore_
from ..schedule import Schedule
from ..shapes import Bool, Float, Int
from .reading import reading

#: All but cuDNN's attention: it makes a plan for each token count that is new to it, and schedules
#: bring new ones all the time.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
              SDPBackend.OVERRIDEABLE]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One schedule on some images, image by image."""

    kl: Float[Tensor, " images"]  # divergence of what is read, unpruned ‖ pruned
    same: Bool[Tensor, " images"]  # is the same answer on top as in the unpruned model?
    hits: Bool[Tensor, " images"] | None  # … the right class, where labels are known

    @cached_property
    def top1(self) -> float | None:
        """In percent, as all shares here."""
        return None if self.hits is None else 100 * _mean(self.hits)

    @cached_property
    def mean_kl(self) -> float:
        mean = _mean(self.kl)
        return mean if math.isfinite(mean) else math.inf  # a model that overflowed agrees with none

    @cached_property
    def agreement(self) -> float:
        return 100 * _mean(self.same)


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


@dataclass(frozen=True)
class Stack:
    """Images as the model takes them, in batches, and what they show where that is known."""

    images: list[Tensor]
    labels: list[Int[Tensor, " batch"]] | None

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.images)


class Objective:
    """The images of one half, the unpruned model's outputs for them, and how far they share
    their way through the model with any schedule.

    What a block gets before the first stage is the same for all schedules: it is kept for as many
    blocks as `memory` bytes hold, the earliest first, where most schedules start to prune.
    """

    def __init__(self, model: nn.Module, method: Method, stack: Stack, memory: float) -> None:
        self.model, self.method = restore_(model), method
        vit = backbone(model)
        self._midway, self._geometry = vit.midway(), vit.geometry
        self.labels = None if stack.labels is None else torch.cat(stack.labels).cpu()
        self.count = len(stack)
        kept = 0 if self._midway is None else self._blocks_that_fit(stack, memory)
        #: of each batch the inputs of blocks 1, 2, …; or the images alone
        self._inputs: list[list[Tensor]] = []
        outputs = []
        with torch.inference_mode(), sdpa_kernel(_ATTENTION):
            for images in stack.images:
                logits, inputs = _record(model, vit, images, kept)
                outputs.append(logits)
                self._inputs.append(inputs or [images])
        self._cached = kept
        self._read = reading(vit.outputs > 0, outputs, self.labels)
        self._reference = self._read(outputs)

    @property
    def cached_blocks(self) -> int:
        return self._cached

    def _blocks_that_fit(self, stack: Stack, memory: float) -> int:
        each = len(stack) * self._geometry.tokens * self._geometry.dim
        each *= stack.images[0].element_size()
        return min(self._geometry.depth - 1, int(memory // each))

    def outputs(self, schedule: Schedule) -> list[Tensor]:
        """What the pruned model gives, batch by batch."""
        prune_(self.model, schedule.by(self.method))
        acting = [stage.block for stage in schedule.stages if stage.prunes]
        first = min(acting, default=self._geometry.depth)
        if self.method.wants_history():
            first = 1
        with torch.inference_mode(), sdpa_kernel(_ATTENTION):
            return [self._run(inputs, first) for inputs in self._inputs]

    def _run(self, inputs: Sequence[Tensor], first: int) -> Tensor:
        if self._midway is None or not self._cached:
            outputs: Tensor = self.model(inputs[0])
            return outputs
        block = min(first, self._cached)
        return self._midway(inputs[block - 1], block)

    def unpruned(self) -> Outcome:
        return self._outcome(self._reference)

    def __call__(self, schedule: Schedule) -> Outcome:
        return self._outcome(self._read(self.outputs(schedule)))

    def _outcome(self, answers: Sequence[Tensor]) -> Outcome:
        kl, same, top = [], [], []
        for wanted, came in zip(self._reference, answers, strict=True):
            kl.append(divergence(wanted, came))
            top.append(came.argmax(dim=-1))
            same.append(top[-1] == wanted.argmax(dim=-1))
        best = torch.cat(top).cpu()
        hits = None if self.labels is None else self._read.classes(best) == self.labels
        return Outcome(torch.cat(kl).cpu(), torch.cat(same).cpu(), hits)


def _record(
    model: nn.Module, vit: Backbone, images: Tensor, kept: int
) -> tuple[Tensor, list[Tensor]]:
    """The outputs of the unpruned model, and what its first blocks got."""
    inputs: list[Tensor] = []
    hooks = [
        block.register_forward_pre_hook(partial(_note, inputs, vit.call), with_kwargs=True)
        for block in vit.blocks[:kept]
    ]
    try:
        logits: Tensor = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, inputs


def _note(
    inputs: list[Tensor],
    call: BlockCall,
    block: nn.Module,
    args: tuple[Any, ...],
    given: dict[str, Any],
) -> None:
    x, _ = call.read(args, given)
    assert isinstance(x, Tensor)
    inputs.append(x)
