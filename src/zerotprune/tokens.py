"""Tokens on their way through the blocks, and what a stage's decision makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .batching import take
from .scoring.adding import add_at
from .scoring.precision import widened
from .scoring.scorer import REFERENCE, Scorer
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
    state: Any = None  # what the method itself lets travel with the kept tokens from here on


class Grid(NamedTuple):
    """Where the patches of the original grid are, once some have no token of their own."""

    place: Int[Tensor, "batch grid slots"]  # the patch token, or tokens, that stand for each
    apart: Float[Tensor, "batch grid width"]  # what it differed from their mean by when it went


#: a tensor's attribute: the tokens that its grid was made of
CARRIED = "_zerotprune_tokens"


class Tokens(NamedTuple):
    """Tokens on their way through the blocks, from the first stage on."""

    x: Float[Tensor, "batch tokens width"]
    source: Int[Tensor, "batch patches"]  # each patch token's place in the original grid
    moved: bool = False  # has a stage been passed, so that the order is no longer the grid's?
    history: Float[Tensor, "batch patches"] | None = None  # attention received in earlier blocks
    size: Float[Tensor, "batch tokens"] | None = None  # how many patches were merged into each
    valid: Bool[Tensor, "batch tokens"] | None = None  # False: padding that nobody attends to
    reduction: Reduction | None = None  # set on what leaves a stage; nothing reads it but `trace`
    grid: Grid | None = None  # where it is kept up: from the first stage on, see `grid`
    state: Any = None  # the method's own, see `Reduction.state`
    whole: int | None = None  # the patches of the original grid

    @classmethod
    def of(cls, x: Tensor | Tokens, prefix: int) -> Tokens:
        """Tokens as they are, or those that a grid carries, or a plain tensor's: every patch in
        its place."""
        if isinstance(x, Tokens):
            return x
        if hasattr(x, CARRIED):
            return _carried(x)
        batch, count, _ = x.shape
        source = torch.arange(count - prefix, device=x.device).expand(batch, -1)
        return cls(x, source, whole=count - prefix)

    def weight(self, power: float = 1.0) -> Float[Tensor, "batch tokens"] | None:
        """How many patches each token stands for, to this power, and 0 for padding; None where
        each stands for itself."""
        size = self.size if power else None
        if size is not None and power != 1:
            size = size**power
        if self.valid is None:
            return size
        counted = self.valid.to(torch.promote_types(self.x.dtype, torch.float32))
        return counted if size is None else size * counted


def carry(x: Tensor, tokens: Tokens) -> None:
    """Let a tensor carry the tokens that it was made of. As plain tuples: torch 2.11 compiles no
    graph that hands out a tensor with an object on it."""
    plain = (tuple(each) if isinstance(each, Reduction | Grid) else each for each in tokens)
    setattr(x, CARRIED, tuple(plain))


def _carried(x: Tensor) -> Tokens:
    tokens = Tokens(*getattr(x, CARRIED))
    reduction, grid = tokens.reduction, tokens.grid
    return tokens._replace(
        reduction=None if reduction is None else Reduction(*reduction),
        grid=None if grid is None else Grid(*grid),
    )


def reduced(
    tokens: Tokens, reduction: Reduction, prefix: int, scorer: Scorer = REFERENCE
) -> Tokens:
    """The prefix tokens and the kept patch tokens, with all that travels along."""
    keep = reduction.keep
    first = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    index = torch.cat((first, keep + prefix), dim=1)
    if reduction.into is None:
        x = take(tokens.x, index)
        size = None if tokens.size is None else tokens.size.gather(1, index)
    else:
        assert reduction.similar is not None
        gone, into = reduction.similar + prefix, reduction.into + prefix
        plain = reduction.adding is not None
        x, size = scorer.merge(tokens.x, None if plain else tokens.size, index, gone, into)
        if reduction.adding is not None:
            size = _sizes(tokens, index, gone, into, reduction.adding)
    left = Tokens(
        x=x,
        source=tokens.source.gather(1, keep),
        moved=True,
        history=None if tokens.history is None else tokens.history.gather(1, keep),
        size=size,
        reduction=reduction,
        state=reduction.state,
        whole=tokens.whole,
    )
    if reduction.fused is not None:
        left = _fuse(left, tokens, reduction.fused, prefix)
    if reduction.valid is not None:
        prefix_valid = torch.ones_like(first, dtype=torch.bool)
        left = left._replace(valid=torch.cat((prefix_valid, reduction.valid), dim=1))
    return left


def _sizes(tokens: Tokens, keep: Tensor, gone: Tensor, into: Tensor, adding: Tensor) -> Tensor:
    """The sizes of the kept tokens, where only a part of what is merged into them is added."""
    if tokens.size is None:
        own, other = (widened(tokens.x.new_ones(each.shape)) for each in (keep, gone))
    else:
        own, other = (tokens.size.gather(1, each) for each in (keep, gone))
    return add_at(own, into, (other * adding).to(own.dtype))


def _fuse(left: Tokens, tokens: Tokens, weight: Tensor, prefix: int) -> Tokens:
    """One token more: the weighted sum, standing where its heaviest part stood."""
    extra = weight.unsqueeze(1) @ widened(tokens.x[:, prefix:])
    place = tokens.source.gather(1, weight.argmax(dim=-1, keepdim=True))
    x = torch.cat((left.x, extra.to(left.x.dtype)), dim=1)
    return left._replace(x=x, source=torch.cat((left.source, place), dim=1))
