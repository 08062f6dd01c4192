"""Trace: what each stage made of every patch of an image, as indices into the original grid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .backbones import unwrap
from .block import PrunedBlock
from .shapes import Float, Int, Shaped
from .surgery import pruned_blocks
from .tokens import CARRIED, Reduction, Tokens


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
        """For each image, the patches with that fate."""
        return [(row == fate).nonzero().flatten().tolist() for row in self.fate]


def trace(
    model: nn.Module, images: Shaped[Tensor, "batch channels height width"]
) -> list[StageTrace]:
    """Run the pruned model on a batch and tell, stage by stage, the fate of every patch.

    The model is looked at through forward hooks, which are gone again afterwards.

    >>> import timm, torch, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit").eval(), cost=0.7)
    >>> last = trace(model, torch.zeros(1, 3, 160, 160))[-1]
    >>> len(last.where(Fate.KEPT)[0]) < last.fate.shape[1]
    True
    """
    if not _staged_blocks(model):
        raise ValueError("nothing to trace: call prune_(model, cost=…) first")
    if not isinstance(images, Tensor) or images.dim() != 4:
        raise TypeError("images must be a tensor of shape (batch, channels, height, width)")
    if not images.isfinite().all():
        raise ValueError("the images hold NaN or infinite values")
    seen: list[_Sight] = []
    hooks = [_watch(pruned, seen) for pruned in pruned_blocks(model) if not pruned.task.last]
    try:
        with torch.inference_mode():
            unwrap(model)(images)
    except AssertionError as error:
        raise ValueError(f"the images do not fit the model: {error}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:  # at this size the budget asks for no stage
        return []
    patches = seen[0].source.shape[1]
    return [_stage_trace(sight, patches) for sight in seen]


@contextmanager
def survivors(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """While it is open, note for every call how many patch tokens of each image each stage left:
    a list of calls, each a list over stages of counts (one for each image)."""
    calls: list[list[Tensor]] = []
    watched = _staged_blocks(model)

    def look(pruned: PrunedBlock, out: Any) -> None:
        tokens = Tokens.of(out, pruned.task.geometry.prefix)
        patches = tokens.source.shape[1]
        if tokens.valid is None:
            counts = torch.full((len(tokens.source),), patches)
        else:
            counts = tokens.valid[:, -patches:].sum(dim=1)
        if pruned is watched[0]:
            calls.append([])
        calls[-1].append(counts)

    hooks = [
        pruned.block.register_forward_hook(lambda _, __, out, pruned=pruned: look(pruned, out))
        for pruned in watched
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def patches_left(model: nn.Module) -> Iterator[list[Int[Tensor, "batch left"]]]:
    """While it is open, note for every call which patches are left in the end: for each patch token
    that leaves the last block, in order, its place in the original grid.

    >>> import timm, torch, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit").eval(), cost=0.7)
    >>> with patches_left(model) as left:
    ...     features = model.forward_features(torch.zeros(1, 3, 160, 160))
    >>> features.shape[1] - model.num_prefix_tokens == left[-1].shape[1]
    True
    """
    noted: list[Tensor] = []
    pruned = pruned_blocks(model)
    if not pruned:
        raise ValueError("the model is not pruned: all of its patches are left")
    last = pruned[-1]
    block, task, call = last.block, last.task, last.call
    # The last block returns a plain tensor: let it return its tokens while we look.
    last.task = replace(task, last=False)

    def look(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Any) -> Any:
        if isinstance(out, Tokens):
            noted.append(out.source)
            return task.method.read(out, task.geometry.prefix)
        if hasattr(out, CARRIED):
            noted.append(Tokens.of(out, task.geometry.prefix).source)
            return out
        before = Tokens.of(call.read(args, given)[0], task.geometry.prefix)
        noted.append(before.source)
        return out

    hook = block.register_forward_hook(look, with_kwargs=True)
    try:
        yield noted
    finally:
        hook.remove()
        last.task = task


def _staged_blocks(model: nn.Module) -> list[PrunedBlock]:
    """Return the blocks with a stage whose tokens go on to another block."""
    return [
        pruned
        for pruned in pruned_blocks(model)
        if pruned.task.stage is not None and not pruned.task.last
    ]


class _Sight(NamedTuple):
    block: int
    source: Tensor  # the original patches that the stage was shown
    valid: Tensor | None  # which of them are not padding
    reduction: Reduction


def _watch(pruned: PrunedBlock, seen: list[_Sight]) -> RemovableHandle:
    call, thread = pruned.call, threading.get_ident()

    def look(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Any) -> None:
        # Another thread may be using the model at the same time; its images are not ours.
        if threading.get_ident() != thread:
            return
        x = call.read(args, given)[0]
        task = pruned.at_size_of(x).task  # at another size, other blocks may have stages
        if task.stage is None:
            return
        prefix = task.geometry.prefix
        tokens = Tokens.of(out, prefix)
        assert tokens.reduction is not None
        shown = Tokens.of(x, prefix)
        valid = None if shown.valid is None else shown.valid[:, prefix:]
        seen.append(_Sight(task.stage.block, shown.source, valid, tokens.reduction))

    return pruned.block.register_forward_hook(look, with_kwargs=True)


def _stage_trace(sight: _Sight, patches: int) -> StageTrace:
    source, reduction = sight.source, sight.reduction
    batch = source.shape[0]
    fate = source.new_full((batch, patches), Fate.GONE)
    shown = torch.full_like(source, Fate.UNIMPORTANT)
    if sight.valid is not None:
        shown = shown.masked_fill(~sight.valid, Fate.GONE)
    kept = torch.full_like(reduction.keep, Fate.KEPT)
    if reduction.valid is not None:
        kept = torch.where(reduction.valid, kept, shown.gather(1, reduction.keep))
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
