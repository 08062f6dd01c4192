"""Trace what each stage does with every patch, and count the tokens that are left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .backbones import backbone, reading, unwrap
from .block import PrunedBlock, Task
from .method import name_of
from .plan import Plan
from .schedule import Schedule
from .shapes import Float, Int, Shaped
from .surgery import current_plan, pruned_blocks
from .tokens import CARRIED, Reduction, Tokens


class Fate(IntEnum):
    """What a stage did to a patch."""

    KEPT = 0
    SIMILAR = 1  # dropped by the S-stage
    UNIMPORTANT = 2  # dropped by the I-stage
    GONE = 3  # dropped by an earlier stage


@dataclass(frozen=True)
class StageTrace:
    """What one stage did with a batch. Every column is a patch of the original grid."""

    block: int
    fate: Int[Tensor, "batch patches"]  # values of `Fate`
    partner: Int[Tensor, "batch patches"]  # the patch that made a SIMILAR one redundant, or −1
    #: of the I-stage, or of I′ if there is no I-stage; NaN for a patch that it did not see
    importance: Float[Tensor, "batch patches"]
    pre_importance: Float[Tensor, "batch patches"]  # of the I′-stage, likewise

    def where(self, fate: Fate) -> list[list[int]]:
        """Return the patches with that fate, a list for each image."""
        return [(row == fate).nonzero().flatten().tolist() for row in self.fate]


def trace(
    model: nn.Module, images: Shaped[Tensor, "batch channels height width"]
) -> list[StageTrace]:
    """Run the pruned model on a batch and return, stage by stage, the fate of every patch.

    Uses forward hooks, and removes them afterwards. A stage at the last block is missing if that
    block is computed for the prefix tokens alone: it does not run then.

    Args:
        model: A pruned model.
        images: A batch of its inputs.

    >>> import timm, torch, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit").eval(), cost=0.7)
    >>> last = trace(model, torch.zeros(1, 3, 160, 160))[-1]
    >>> len(last.where(Fate.KEPT)[0]) < last.fate.shape[1]
    True
    """
    pruned = pruned_blocks(model)
    staged = [block for block in pruned if block.task.stage is not None]
    if not staged:
        raise ValueError("nothing to trace: call prune_(model, cost=…) first")
    check_images("images", images)
    if not images.isfinite().all():
        raise ValueError("images must be finite, got NaN or infinite values")
    seen: list[_Sight] = []
    with ExitStack() as watches:
        for block in pruned:
            if block.task.last:
                watches.enter_context(_watching_last(block, seen))
            else:
                watches.callback(_watch(block, seen).remove)
        try:
            with torch.inference_mode():
                unwrap(model)(images)
        except AssertionError as error:
            raise ValueError(f"the images do not fit the model: {error}") from None
    if not seen and all(block.task.last for block in staged):
        raise ValueError(
            "nothing to trace: the only stage is at the last block, which is computed for the "
            'prefix tokens alone; prune with compute="all" to run it'
        )
    if not seen:  # at this size the budget needs no stage
        return []
    patches = seen[0].source.shape[1]
    return [_stage_trace(sight, patches) for sight in seen]


def check_images(name: str, images: object) -> None:
    """Raise unless it is a batch of images."""
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(images).__name__}")
    if images.dim() != 4 or not images.is_floating_point():
        raise TypeError(
            f"{name} must be floating-point numbers of shape (batch, channels, height, width), got "
            f"{images.dtype} of shape {tuple(images.shape)}"
        )
    if len(images) == 0:
        raise ValueError(f"{name} must hold at least one image, got none")


@contextmanager
def survivors(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Record how many patch tokens each stage leaves, while it is open: a list of calls, each a
    list over stages of counts, one for each image."""
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
    """Record which patches are left, while it is open: for every call, the index in the original
    grid of each patch token that leaves the last block, in order.

    Args:
        model: A pruned model.

    >>> import timm, torch, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit").eval(), cost=0.7)
    >>> with patches_left(model) as left:
    ...     features = model.forward_features(torch.zeros(1, 3, 160, 160))
    >>> features.shape[1] - model.num_prefix_tokens == left[-1].shape[1]
    True
    """
    sources: list[Tensor] = []
    pruned = pruned_blocks(model)
    if not pruned:
        raise ValueError("the model is not pruned: call prune_(model, cost=…) first")
    last = pruned[-1]
    block, task, call = last.block, last.task, last.call
    # The last block returns a plain tensor: let it return its tokens for now.
    last.task = replace(task, last=False)

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if isinstance(out, Tokens):
            sources.append(out.source)
            return task.method.read(out, task.geometry.prefix)
        if hasattr(out, CARRIED):
            sources.append(Tokens.of(out, task.geometry.prefix).source)
            return out
        before = Tokens.of(call.read(args, kwargs)[0], task.geometry.prefix)
        sources.append(before.source)
        return out

    hook = block.register_forward_hook(look, with_kwargs=True)
    try:
        yield sources
    finally:
        hook.remove()
        last.task = task


def image_tokens(model: nn.Module) -> int:
    """Return how many image tokens the prompt of a vision-language model must hold for an image.

    That is the number of vectors that the language model gets from the tower, with or without CLS,
    at the layer that it reads. A pruned tower gives fewer, unless it has outputs="grid", and so the
    language model is faster too.

    Args:
        model: LLaVA or PaliGemma of transformers, whose language model takes any number.

    >>> import transformers, zerotprune as ztp
    >>> small = dict(hidden_size=48, num_hidden_layers=6, num_attention_heads=3)
    >>> config = transformers.LlavaConfig(
    ...     vision_config=transformers.CLIPVisionConfig(**small, image_size=96, patch_size=16),
    ...     text_config=transformers.LlamaConfig(**small, vocab_size=64),
    ...     image_token_id=63,
    ... )
    >>> model = transformers.LlavaForConditionalGeneration(config).eval()
    >>> image_tokens(model)
    36
    >>> schedule = ztp.Schedule((ztp.Stage(2, similar=12), ztp.Stage(5, similar=8)), "fold")
    >>> tower = ztp.prune_(model.model.vision_tower, schedule)
    >>> image_tokens(model)
    16
    """
    read = reading(model)
    plan = current_plan(read.tower) or Plan(Schedule(), backbone(read.tower).geometry)
    if plan.method.adaptive and plan.outputs == "tokens":
        raise ValueError(
            f"with {name_of(plan.method)} the number of tokens depends on the image, and a prompt "
            'holds a fixed number: prune the tower with outputs="grid"'
        )
    lengths = plan.lengths()
    counts = {lengths[state] - read.left_out for state in read.states}
    if len(counts) > 1:
        raise ValueError(
            f"the model reads layers {', '.join(map(str, read.states))} together, which now differ "
            'in their number of tokens: prune the tower with outputs="grid"'
        )
    return counts.pop()


def _staged_blocks(model: nn.Module) -> list[PrunedBlock]:
    """Return the blocks with a stage whose tokens go on to another block."""
    return [
        pruned
        for pruned in pruned_blocks(model)
        if pruned.task.stage is not None and not pruned.task.last
    ]


class _Sight(NamedTuple):
    block: int
    source: Tensor  # the original patches that the stage saw
    valid: Tensor | None  # False: padding
    reduction: Reduction


def _watch(pruned: PrunedBlock, seen: list[_Sight]) -> RemovableHandle:
    call, thread = pruned.call, threading.get_ident()

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        # Another thread may be using the model at the same time; ignore its images.
        if threading.get_ident() != thread:
            return
        x = call.read(args, kwargs)[0]
        task = pruned.at_size_of(x).task  # at another size, other blocks may have stages
        if task.stage is not None:
            prefix = task.geometry.prefix
            seen.append(_sight(task, Tokens.of(x, prefix), Tokens.of(out, prefix)))

    return pruned.block.register_forward_hook(look, with_kwargs=True)


@contextmanager
def _watching_last(pruned: PrunedBlock, seen: list[_Sight]) -> Iterator[None]:
    """Record what the stage of the last block does, if it runs, while it is open. A hook would make
    the last block compute all tokens, and the stage run."""
    at_size_of, thread = pruned.at_size_of, threading.get_ident()

    def watched(x: Tensor | Tokens) -> PrunedBlock:
        sized = copy(at_size_of(x))
        task, run = sized.task, sized.run

        def look(
            x: Tensor | Tokens, kwargs: dict[str, Any], left: list[Tokens] | None = None
        ) -> Tensor | Tokens:
            left = [] if left is None else left
            out = run(x, kwargs, left)
            if task.stage is not None and threading.get_ident() == thread:
                seen.append(_sight(task, Tokens.of(x, task.geometry.prefix), left[-1]))
            return out

        sized.run = look  # type: ignore[method-assign]
        return sized

    pruned.at_size_of = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        del pruned.at_size_of


def _sight(task: Task, shown: Tokens, left: Tokens) -> _Sight:
    assert left.reduction is not None
    assert task.stage is not None
    valid = None if shown.valid is None else shown.valid[:, task.geometry.prefix :]
    return _Sight(task.stage.block, shown.source, valid, left.reduction)


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
    if reduction.fused is not None:  # the extra token is in the place of its heaviest part
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
