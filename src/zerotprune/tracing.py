"""Trace: what each stage made of every patch of a picture, as indices into the original grid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .backbones import unwrap
from .block import Task
from .pruning import pruned_blocks
from .shapes import Float, Int, Shaped
from .tokens import Reduction, Tokens


class Fate(IntEnum):
    """What a stage did to a patch."""

    KEPT = 0
    SIMILAR = 1  # dropped by the S-stage
    UNIMPORTANT = 2  # dropped by the I-stage
    GONE = 3  # dropped by an earlier stage


@dataclass(frozen=True)
class StageTrace:
    """One stage over a batch. Every column is a patch of the original grid."""

    block: int
    fate: Int[Tensor, "batch patches"]  # values of `Fate`
    partner: Int[Tensor, "batch patches"]  # the patch that made a SIMILAR one redundant, or −1
    importance: Float[Tensor, "batch patches"]  # of the I-stage, or I′ where it has no I-stage;
    # NaN for a patch that it did not see
    pre_importance: Float[Tensor, "batch patches"]  # of the I′-stage, NaN likewise

    def where(self, fate: Fate) -> list[list[int]]:
        """For each picture, the patches with that fate."""
        return [(row == fate).nonzero().flatten().tolist() for row in self.fate]


def trace(
    model: nn.Module, images: Shaped[Tensor, "batch channels height width"]
) -> list[StageTrace]:
    """Run the pruned model on a batch and tell, stage by stage, the fate of every patch.

    The model is looked at through forward hooks, which are gone again afterwards.
    """
    watched = _staged_blocks(model)
    if not watched:
        raise ValueError("nothing to trace: call prune_(model, schedule) with a stage first")
    if not isinstance(images, Tensor) or images.dim() != 4:
        raise TypeError("images must be a tensor of shape (batch, channels, height, width)")
    if not images.isfinite().all():
        raise ValueError("the pictures hold NaN or infinite values")
    seen: list[_Sight] = []
    hooks = [_watch(block, task, seen) for block, task in watched]
    try:
        with torch.inference_mode():
            unwrap(model)(images)
    except AssertionError as error:
        raise ValueError(f"the pictures do not fit the model: {error}") from None
    finally:
        for hook in hooks:
            hook.remove()
    patches = seen[0].source.shape[1]
    return [_stage_trace(sight, patches) for sight in seen]


@contextmanager
def survivors(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """While it is open, note for every call how many patch tokens of each picture each stage left:
    a list of calls, each a list over stages of counts (one for each picture)."""
    calls: list[list[Tensor]] = []
    blocks = [block for block, _ in _staged_blocks(model)]

    def look(block: nn.Module, _: Any, out: Tokens) -> None:
        patches = out.source.shape[1]
        if out.alive is None:
            counts = torch.full((len(out.source),), patches)
        else:
            counts = out.alive[:, -patches:].sum(dim=1)
        if block is blocks[0]:
            calls.append([])
        calls[-1].append(counts)

    hooks = [block.register_forward_hook(look) for block in blocks]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _staged_blocks(model: nn.Module) -> list[tuple[nn.Module, Task]]:
    """The blocks with a stage whose tokens go on to another block."""
    return [
        (block, task)
        for block, task in pruned_blocks(model)
        if task.stage is not None and not task.last
    ]


class _Sight(NamedTuple):
    block: int
    source: Tensor  # the original patches that the stage was shown
    alive: Tensor | None  # which of them are not padding
    reduction: Reduction


def _watch(block: nn.Module, task: Task, seen: list[_Sight]) -> RemovableHandle:
    thread = threading.get_ident()

    def look(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        # Another thread may be using the model at the same time; its pictures are not ours.
        if threading.get_ident() != thread:
            return
        assert isinstance(out, Tokens)
        assert out.reduction is not None
        assert task.stage is not None
        shown = Tokens.of(args[0], task.geometry.prefix)
        alive = None if shown.alive is None else shown.alive[:, task.geometry.prefix :]
        seen.append(_Sight(task.stage.block, shown.source, alive, out.reduction))

    return block.register_forward_hook(look)


def _stage_trace(sight: _Sight, patches: int) -> StageTrace:
    source, reduction = sight.source, sight.reduction
    batch = source.shape[0]
    fate = source.new_full((batch, patches), Fate.GONE)
    shown = torch.full_like(source, Fate.UNIMPORTANT)
    if sight.alive is not None:
        shown = shown.masked_fill(~sight.alive, Fate.GONE)
    kept = torch.full_like(reduction.keep, Fate.KEPT)
    if reduction.alive is not None:
        kept = torch.where(reduction.alive, kept, shown.gather(1, reduction.keep))
    fate.scatter_(1, source, shown)
    fate.scatter_(1, source.gather(1, reduction.keep), kept)
    if reduction.fused is not None:  # the extra token stands where its heaviest part stood
        heaviest = reduction.fused.argmax(dim=-1, keepdim=True)
        fate.scatter_(1, source.gather(1, heaviest), Fate.KEPT)
    partner = source.new_full((batch, patches), -1)
    importance = reduction.importance
    if reduction.similar is not None and reduction.partner is not None:
        dropped = source.gather(1, reduction.similar)
        fate.scatter_(1, dropped, Fate.SIMILAR)
        partner.scatter_(1, dropped, source.gather(1, reduction.partner))
        if importance is not None and reduction.pre_importance is not None:
            importance = importance.scatter(1, reduction.similar, torch.nan)
    pre = _on_grid(reduction.pre_importance, source, patches)
    decided = pre if importance is None else _on_grid(importance, source, patches)
    return StageTrace(sight.block, fate, partner, decided, pre)


def _on_grid(values: Tensor | None, source: Tensor, patches: int) -> Tensor:
    grid = torch.full((source.shape[0], patches), torch.nan, device=source.device)
    if values is None:
        return grid
    return grid.to(values.dtype).scatter(1, source, values)
