"""Tokens on their way through the blocks, and what a stage's decision makes of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .batching import take
from .scoring.precision import widened
from .shapes import Bool, Float, Int


class Reduction(NamedTuple):
    """What a method decided at one stage; all indices count the patch tokens it was shown."""

    keep: Int[Tensor, "batch kept"]
    importance: Float[Tensor, "batch patches"] | None = None  # of the I-stage
    pre_importance: Float[Tensor, "batch patches"] | None = None  # of the I′-stage
    similar: Int[Tensor, "batch similar"] | None = None  # gone for being like another token …
    partner: Int[Tensor, "batch similar"] | None = None  # … which is this one
    into: Int[Tensor, "batch similar"] | None = None  # where they are merged: place in `keep`
    adding: Float[Tensor, "batch similar"] | None = None  # so much of their size; in a plain mean
    fused: Float[Tensor, "batch patches"] | None = None  # weights of one extra token, their sum
    valid: Bool[Tensor, "batch kept"] | None = None  # False: padding of an image that keeps fewer


class Tokens(NamedTuple):
    """Tokens on their way through the blocks, from the first stage on."""

    x: Float[Tensor, "batch tokens width"]
    source: Int[Tensor, "batch patches"]  # each patch token's place in the original grid
    moved: bool = False  # has a stage been passed, so that the order is no longer the grid's?
    history: Float[Tensor, "batch patches"] | None = None  # attention received in earlier blocks
    size: Float[Tensor, "batch tokens"] | None = None  # how many patches were merged into each
    valid: Bool[Tensor, "batch tokens"] | None = None  # False: padding that nobody attends to
    reduction: Reduction | None = None  # set on what leaves a stage; nothing reads it but `trace`

    @classmethod
    def of(cls, x: Tensor | Tokens, prefix: int) -> Tokens:
        """Tokens as they are, or a plain tensor's: every patch in its place."""
        if isinstance(x, Tokens):
            return x
        batch, count, _ = x.shape
        return cls(x, torch.arange(count - prefix, device=x.device).expand(batch, -1))


def reduced(tokens: Tokens, reduction: Reduction, prefix: int) -> Tokens:
    """The prefix tokens and the kept patch tokens, with all that travels along."""
    keep = reduction.keep
    first = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    index = torch.cat((first, keep + prefix), dim=1)
    left = Tokens(
        x=take(tokens.x, index),
        source=tokens.source.gather(1, keep),
        moved=True,
        history=None if tokens.history is None else tokens.history.gather(1, keep),
        size=None if tokens.size is None else tokens.size.gather(1, index),
        reduction=reduction,
    )
    if reduction.into is not None:
        merge = _merge if reduction.adding is None else _merge_plainly
        left = merge(left, tokens, reduction, prefix)
    if reduction.fused is not None:
        left = _fuse(left, tokens, reduction.fused, prefix)
    if reduction.valid is not None:
        prefix_valid = torch.ones_like(first, dtype=torch.bool)
        left = left._replace(valid=torch.cat((prefix_valid, reduction.valid), dim=1))
    return left


def _merge(left: Tokens, tokens: Tokens, reduction: Reduction, prefix: int) -> Tokens:
    """Mean of the merged tokens, each weighted by the number of patches already in it."""
    assert reduction.similar is not None
    assert reduction.into is not None
    gone, into = reduction.similar + prefix, reduction.into + prefix
    ones = widened(left.x.new_ones(left.x.shape[:2]))
    size = ones if left.size is None else left.size
    size_gone = ones.new_ones(gone.shape) if tokens.size is None else tokens.size.gather(1, gone)
    total = size.scatter_add(1, into, size_gone)
    own = widened(left.x) * size.unsqueeze(-1)
    other = widened(take(tokens.x, gone)) * size_gone.unsqueeze(-1)
    mixed = own.scatter_add(1, into.unsqueeze(-1).expand_as(other), other.to(own.dtype))
    return left._replace(x=(mixed / total.unsqueeze(-1)).to(left.x.dtype), size=total)


def _merge_plainly(left: Tokens, tokens: Tokens, reduction: Reduction, prefix: int) -> Tokens:
    """Mean of the merged tokens, each counted once; of their sizes a part is added."""
    assert reduction.similar is not None
    assert reduction.into is not None
    assert reduction.adding is not None
    gone, into = reduction.similar + prefix, reduction.into + prefix
    ones = widened(left.x.new_ones(left.x.shape[:2]))
    size = ones if left.size is None else left.size
    size_gone = ones.new_ones(gone.shape) if tokens.size is None else tokens.size.gather(1, gone)
    total = size.scatter_add(1, into, (size_gone * reduction.adding).to(size.dtype))
    count = ones.scatter_add(1, into, ones.new_ones(gone.shape))
    other = widened(take(tokens.x, gone))
    mixed = widened(left.x).scatter_add(1, into.unsqueeze(-1).expand_as(other), other)
    return left._replace(x=(mixed / count.unsqueeze(-1)).to(left.x.dtype), size=total)


def _fuse(left: Tokens, tokens: Tokens, weight: Tensor, prefix: int) -> Tokens:
    """One token more: the weighted sum, standing where its heaviest part stood."""
    extra = weight.unsqueeze(1) @ widened(tokens.x[:, prefix:])
    place = tokens.source.gather(1, weight.argmax(dim=-1, keepdim=True))
    x = torch.cat((left.x, extra.to(left.x.dtype)), dim=1)
    return left._replace(x=x, source=torch.cat((left.source, place), dim=1))
