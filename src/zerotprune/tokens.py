"""Tokens on their way through the blocks, and how a stage reduces them."""

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
    """What a method decided at one stage. All indices count the patch tokens that it saw."""

    keep: Int[Tensor, "batch kept"]
    importance: Float[Tensor, "batch patches"] | None = None  # of the I-stage
    pre_importance: Float[Tensor, "batch patches"] | None = None  # of the I′-stage
    similar: Int[Tensor, "batch similar"] | None = None  # removed: they resemble another token …
    partner: Int[Tensor, "batch similar"] | None = None  # … which is this one
    into: Int[Tensor, "batch similar"] | None = None  # where they are merged: place in `keep`
    adding: Float[Tensor, "batch similar"] | None = None  # share of their size to add
    weight: Float[Tensor, "batch patches"] | None = None  # in the mean, where that is not the size
    fused: Float[Tensor, "batch patches"] | None = None  # weights of one extra token
    valid: Bool[Tensor, "batch kept"] | None = None  # False: padding of an image that keeps fewer
    state: Any = None  # the method's, which travels with the kept tokens from here on


class Grid(NamedTuple):
    """Where the patches of the original grid are once tokens have been removed."""

    place: Int[Tensor, "batch grid slots"]  # the patch token or tokens that stand for a patch
    apart: Float[Tensor, "batch grid width"]  # its difference from their mean when it was removed


#: attribute of a tensor: the tokens from which its grid was made
CARRIED = "_zerotprune_tokens"


class Tokens(NamedTuple):
    """Tokens on their way through the blocks, from the first stage on."""

    x: Float[Tensor, "batch tokens width"]
    source: Int[Tensor, "batch patches"]  # the patch tokens' places in the original grid
    moved: bool = False  # after a stage: the order is no longer the grid's
    history: Float[Tensor, "batch patches"] | None = None  # attention received in earlier blocks
    size: Float[Tensor, "batch tokens"] | None = None  # how many patches a token stands for
    valid: Bool[Tensor, "batch tokens"] | None = None  # False: padding, masked in attention
    reduction: Reduction | None = None  # set by a stage and read by `trace` alone
    grid: Grid | None = None  # from the first stage on, if every patch is wanted: see `grid`
    state: Any = None  # see `Reduction.state`
    whole: int | None = None  # the patches of the original grid

    @classmethod
    def of(cls, x: Tensor | Tokens, prefix: int) -> Tokens:
        """Return tokens as they are, those that a grid carries, or a plain tensor as tokens."""
        if isinstance(x, Tokens):
            return x
        if hasattr(x, CARRIED):
            return _carried(x)
        batch, count, _ = x.shape
        source = torch.arange(count - prefix, device=x.device).expand(batch, -1)
        return cls(x, source, whole=count - prefix)

    def weight(self, power: float = 1.0) -> Float[Tensor, "batch tokens"] | None:
        """Return how many patches every token stands for, to a power, and 0 for padding.

        None if every token stands for itself.
        """
        size = self.size if power else None
        if size is not None and power != 1:
            size = size**power
        if self.valid is None:
            return size
        counted = self.valid.to(torch.promote_types(self.x.dtype, torch.float32))
        return counted if size is None else size * counted


def carry(x: Tensor, tokens: Tokens) -> None:
    """Attach to a tensor the tokens from which it was made.

    They are plain tuples: torch 2.11 does not compile a graph that returns a tensor with an object.
    """
    plain = (tuple(part) if isinstance(part, Reduction | Grid) else part for part in tokens)
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
    """Return the prefix tokens and the kept patch tokens, with everything that travels along."""
    keep, index = reduction.keep, _kept(reduction, prefix)
    if reduction.into is None:
        x = take(tokens.x, index)
        size = None if tokens.size is None else tokens.size.gather(1, index)
    else:
        assert reduction.similar is not None
        gone, into = reduction.similar + prefix, reduction.into + prefix
        x, size = scorer.merge(tokens.x, _weight(tokens, reduction, prefix), index, gone, into)
        if reduction.adding is not None or reduction.weight is not None:
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
        prefix_valid = torch.ones_like(index[:, :prefix], dtype=torch.bool)
        left = left._replace(valid=torch.cat((prefix_valid, reduction.valid), dim=1))
    return left


def reduced_graph(
    graph: Float[Tensor, "batch heads tokens tokens"],
    tokens: Tokens,
    reduction: Reduction,
    prefix: int,
) -> Float[Tensor, "batch heads left left"]:
    """Return the attention among the tokens that are left: a merged one receives the sum of what
    its tokens received, and pays the mean of what they paid, weighted as they were merged."""
    batch, heads, count, _ = graph.shape
    index, gone, into = _kept(reduction, prefix), reduction.similar, reduction.into
    left = index.shape[1]
    columns = graph.permute(0, 3, 1, 2).flatten(2)
    kept = take(columns, index)
    if gone is not None and into is not None:
        kept = add_at(kept, into + prefix, take(columns, gone + prefix))
    rows = kept.view(batch, left, heads, count).permute(0, 3, 2, 1).flatten(2)
    if gone is None or into is None:
        rows = take(rows, index)
    else:
        weight = _weight(tokens, reduction, prefix)
        rows, _ = REFERENCE.merge(rows, weight, index, gone + prefix, into + prefix)
    return rows.view(batch, left, heads, left).transpose(1, 2)


def _kept(reduction: Reduction, prefix: int) -> Int[Tensor, "batch left"]:
    """The places of all tokens that are left, the prefix first."""
    keep = reduction.keep
    first = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    return torch.cat((first, keep + prefix), dim=1)


def _weight(
    tokens: Tokens, reduction: Reduction, prefix: int
) -> Float[Tensor, "batch tokens"] | None:
    """How much each token counts where it is merged; None for all alike."""
    if reduction.weight is None:
        return None if reduction.adding is not None else tokens.size
    ones = torch.ones_like(reduction.weight[:, :1]).expand(-1, prefix)
    return torch.cat((ones, reduction.weight), dim=1)


def _sizes(
    tokens: Tokens, keep: Tensor, gone: Tensor, into: Tensor, adding: Tensor | None
) -> Tensor:
    """Return the sizes of the kept tokens with those merged into them added, or a share of them."""
    if tokens.size is None:
        kept, merged = (widened(tokens.x.new_ones(index.shape)) for index in (keep, gone))
    else:
        kept, merged = (tokens.size.gather(1, index) for index in (keep, gone))
    return add_at(kept, into, (merged if adding is None else merged * adding).to(kept.dtype))


def _fuse(left: Tokens, tokens: Tokens, weight: Tensor, prefix: int) -> Tokens:
    """Append one token, the weighted sum, at the place of the token with the largest weight."""
    extra = weight.unsqueeze(1) @ widened(tokens.x[:, prefix:])
    place = tokens.source.gather(1, weight.argmax(dim=-1, keepdim=True))
    x = torch.cat((left.x, extra.to(left.x.dtype)), dim=1)
    return left._replace(x=x, source=torch.cat((left.source, place), dim=1))
