"""Tokens on their way through the blocks, how a stage reduces them, and the way back to the grid.

To restore the grid (`outputs="grid"`), other tokens stand in for a patch that was removed, and its
difference from their mean is kept. The tokens change in later blocks; adding the difference to
their mean gives the patch the same change.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .scoring.graph import is_autocast, no_autocast, widen
from .scoring.indexing import add_at, take
from .scoring.scorer import REFERENCE, Scorer
from .scoring.similarity import similarity
from .shapes import Bool, Float, Int

#: what the model returns: the tokens that are left, or a vector for every patch
Outputs = Literal["tokens", "grid"]

#: How many tokens stand in for a dropped patch, the most similar ones. A power of two, so that the
#: mean of equal vectors is that vector, bit for bit.
STAND_INS = 4

#: attribute of a tensor of the whole grid: the tokens that it was made of
CARRIED = "_zerotprune_tokens"


def check_outputs(outputs: str) -> None:
    if outputs not in get_args(Outputs):
        raise ValueError(f'outputs must be "tokens" or "grid", got {outputs!r}')


class Reduction(NamedTuple):
    """What a method decides at one stage. All indices count the patch tokens that it saw."""

    keep: Int[Tensor, "batch kept"]
    importance: Float[Tensor, "batch patches"] | None = None  # of the I-stage
    pre_importance: Float[Tensor, "batch patches"] | None = None  # of the I′-stage
    similar: Int[Tensor, "batch similar"] | None = None  # removed: they resemble another token …
    partner: Int[Tensor, "batch similar"] | None = None  # … which is this one
    into: Int[Tensor, "batch similar"] | None = None  # index in `keep` that they are merged into
    adding: Float[Tensor, "batch similar"] | None = None  # share of their size that is added
    weight: Float[Tensor, "batch patches"] | None = None  # in the mean, if that is not the size
    keeps_length: bool = False  # is a mean scaled to the mean length of the tokens in it?
    fused: Float[Tensor, "batch patches"] | None = None  # weights of one extra token
    valid: Bool[Tensor, "batch kept"] | None = None  # False: padding of an image that keeps fewer
    state: Any = None  # the method's, travels with the kept tokens


class Grid(NamedTuple):
    """Where the patches of the original grid are once tokens have been removed."""

    place: Int[Tensor, "batch grid slots"]  # the patch tokens that stand in for a patch
    offset: Float[Tensor, "batch grid width"]  # its difference from their mean when it was removed


class Tokens(NamedTuple):
    """Tokens on their way through the blocks, from the first stage on."""

    x: Float[Tensor, "batch tokens width"]
    source: Int[Tensor, "batch patches"]  # the patch tokens' indices in the original grid
    moved: bool = False  # after a stage: the order is no longer the grid's
    history: Float[Tensor, "batch patches"] | None = None  # attention received in earlier blocks
    size: Float[Tensor, "batch tokens"] | None = None  # how many patches were merged into a token
    valid: Bool[Tensor, "batch tokens"] | None = None  # False: padding, masked in attention
    reduction: Reduction | None = None  # set by a stage, for `trace`
    grid: Grid | None = None  # from the first stage on, with outputs="grid"
    state: Any = None  # see `Reduction.state`
    whole: int | None = None  # the number of patches in the original grid

    @classmethod
    def of(cls, x: Tensor | Tokens, prefix: int) -> Tokens:
        """Return `x` itself, the tokens that a grid carries, or a plain tensor as tokens."""
        if isinstance(x, Tokens):
            return x
        if hasattr(x, CARRIED):
            return _carried(x)
        batch, count, _ = x.shape
        source = torch.arange(count - prefix, device=x.device).expand(batch, -1)
        return cls(x, source, whole=count - prefix)

    def weight(self, power: float = 1.0) -> Float[Tensor, "batch tokens"] | None:
        """Return the size of every token to a power, with 0 for padding; None if all are 1."""
        size = self.size if power else None
        if size is not None and power != 1:
            size = size**power
        if self.valid is None:
            return size
        valid = self.valid.to(torch.promote_types(self.x.dtype, torch.float32))
        return valid if size is None else size * valid


def reduce_tokens(
    tokens: Tokens, reduction: Reduction, prefix: int, scorer: Scorer = REFERENCE
) -> Tokens:
    """Return the prefix tokens and the kept patch tokens, with all that belongs to them."""
    keep, indices = reduction.keep, _kept_indices(reduction, prefix)
    if reduction.into is None:
        x = take(tokens.x, indices)
        size = None if tokens.size is None else tokens.size.gather(1, indices)
    else:
        assert reduction.similar is not None
        gone, into = reduction.similar + prefix, reduction.into + prefix
        weight = _merge_weight(tokens, reduction, prefix)
        x, size = scorer.merge(tokens.x, weight, indices, gone, into, reduction.keeps_length)
        if reduction.adding is not None or reduction.weight is not None:
            size = _merged_sizes(tokens, indices, gone, into, reduction.adding)
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
        left = _append_fused(left, tokens, reduction.fused, prefix)
    if reduction.valid is not None:
        prefix_valid = torch.ones_like(indices[:, :prefix], dtype=torch.bool)
        left = left._replace(valid=torch.cat((prefix_valid, reduction.valid), dim=1))
    return left


def reduce_graph(
    graph: Float[Tensor, "batch heads tokens tokens"],
    tokens: Tokens,
    reduction: Reduction,
    prefix: int,
) -> Float[Tensor, "batch heads left left"]:
    """Return the attention among the tokens that are left: a merged token receives the sum of what
    its tokens received, and pays the mean of what they paid, weighted as in the merge."""
    batch, heads, count, _ = graph.shape
    indices, gone, into = _kept_indices(reduction, prefix), reduction.similar, reduction.into
    left = indices.shape[1]
    columns = graph.permute(0, 3, 1, 2).flatten(2)
    kept = take(columns, indices)
    if gone is not None and into is not None:
        (kept,) = add_at(into + prefix, (kept, take(columns, gone + prefix)))
    rows = kept.view(batch, left, heads, count).permute(0, 3, 2, 1).flatten(2)
    if gone is None or into is None:
        rows = take(rows, indices)
    else:
        weight = _merge_weight(tokens, reduction, prefix)
        rows, _ = REFERENCE.merge(rows, weight, indices, gone + prefix, into + prefix)
    return rows.view(batch, left, heads, left).transpose(1, 2)


def _kept_indices(reduction: Reduction, prefix: int) -> Int[Tensor, "batch left"]:
    """Return the indices of all tokens that are left, prefix tokens first."""
    keep = reduction.keep
    first = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    return torch.cat((first, keep + prefix), dim=1)


def _merge_weight(
    tokens: Tokens, reduction: Reduction, prefix: int
) -> Float[Tensor, "batch tokens"] | None:
    """Return the weight of each token in the mean of a merge; None if all are equal."""
    if reduction.weight is None:
        return None if reduction.adding is not None else tokens.size
    ones = torch.ones_like(reduction.weight[:, :1]).expand(-1, prefix)
    return torch.cat((ones, reduction.weight), dim=1)


def _merged_sizes(
    tokens: Tokens, keep: Tensor, gone: Tensor, into: Tensor, share: Tensor | None
) -> Tensor:
    """Add the sizes of the merged tokens, or a share of each, to the sizes of the kept ones."""
    size = widen(tokens.x.new_ones(tokens.x.shape[:2])) if tokens.size is None else tokens.size
    kept, merged = size.gather(1, keep), size.gather(1, gone)
    updates = (merged if share is None else merged * share).to(kept.dtype)
    return add_at(into, (kept, updates))[0]


def _append_fused(left: Tokens, tokens: Tokens, weight: Tensor, prefix: int) -> Tokens:
    """Append one token, the weighted sum, in the place of the token with the largest weight."""
    if is_autocast(tokens.x):
        with no_autocast(tokens.x):
            return _append_fused(left, tokens, weight, prefix)
    fused = weight.unsqueeze(1) @ widen(tokens.x[:, prefix:])
    source = tokens.source.gather(1, weight.argmax(dim=-1, keepdim=True))
    x = torch.cat((left.x, fused.to(left.x.dtype)), dim=1)
    return left._replace(x=x, source=torch.cat((left.source, source), dim=1))


def update_grid(before: Tokens, after: Tokens, reduction: Reduction, prefix: int) -> Grid:
    """Return where every patch of the grid is after a stage, from the tokens before and after."""
    old, new = before.x[:, prefix:], after.x[:, prefix:]
    with torch.no_grad(), no_autocast(old):
        place = _stand_ins(old, reduction)
    if before.grid is None:
        return Grid(place, old - _mean(new, place))
    old_place = before.grid.place
    slots = max(old_place.shape[-1], place.shape[-1])
    # The first stand-in of a patch's first stand-in becomes its first, and so on.
    new_place = place.expand(-1, -1, slots).gather(1, old_place.expand(-1, -1, slots))
    offset = before.grid.offset + (_mean(old, old_place) - _mean(new, new_place))
    return Grid(new_place, offset)


def _mean(
    x: Float[Tensor, "batch tokens width"], place: Int[Tensor, "batch grid slots"]
) -> Float[Tensor, "batch grid width"]:
    """Return for every patch the mean of its stand-ins."""
    batch, patches, slots = place.shape
    vectors = take(x, place.flatten(1)).view(batch, patches, slots, -1)
    while vectors.shape[2] > 1:  # by halves: the mean of equal vectors is then exact
        half = vectors.shape[2] // 2
        vectors = (vectors[:, :, :half] + vectors[:, :, half:]) / 2
    return vectors.squeeze(2)


def _stand_ins(
    features: Float[Tensor, "batch patches width"], reduction: Reduction
) -> Int[Tensor, "batch patches slots"]:
    """Choose the stand-ins of every patch token that a stage saw, as indices of kept tokens.

    That is the token itself, the one it is merged into, or the most similar of the kept ones.
    """
    keep, merged, valid = reduction.keep, reduction.similar, reduction.valid
    batch, patches, _ = features.shape
    itself = torch.arange(keep.shape[1], device=keep.device).expand(batch, -1).unsqueeze(-1)
    if valid is not None:
        # How many tokens an image drops is not known ahead, so find stand-ins for all of them.
        # Padding stands in for nothing, unless an image has no other token left.
        valid = valid | ~valid.any(dim=1, keepdim=True)
        near = _nearest(features, take(features, keep), valid)
        at = keep.unsqueeze(-1).expand(-1, -1, STAND_INS)
        return near.scatter(1, at, torch.where(valid.unsqueeze(-1), itself, near.gather(1, at)))
    place = torch.zeros_like(itself[:, :1]).expand(-1, patches, -1)
    place = place.scatter(1, keep.unsqueeze(-1), itself)
    count, mask = patches - keep.shape[1], torch.ones_like(features[..., 0]).scatter(1, keep, 0.0)
    if merged is not None and reduction.into is not None:
        place = place.scatter(1, merged.unsqueeze(-1), reduction.into.unsqueeze(-1))
        count, mask = count - merged.shape[1], mask.scatter(1, merged, 0.0)
    if count == 0:
        return place
    dropped = mask.topk(count, dim=1).indices
    near = _nearest(take(features, dropped), take(features, keep))
    at = dropped.unsqueeze(-1).expand(-1, -1, STAND_INS)
    return place.repeat(1, 1, STAND_INS).scatter(1, at, near)


def _nearest(
    features: Float[Tensor, "batch some width"],
    among: Float[Tensor, "batch kept width"],
    valid: Tensor | None = None,
) -> Int[Tensor, "batch some slots"]:
    """Return the indices of the `STAND_INS` most similar tokens by cosine, the best one repeated if
    there are fewer."""
    scores = similarity(features, among, "cosine")
    if valid is not None:
        scores = scores.masked_fill(~valid.unsqueeze(1), -torch.inf)
    best = scores.topk(min(STAND_INS, among.shape[1]), dim=-1)
    near = torch.where(best.values == -torch.inf, best.indices[..., :1], best.indices)
    fill = near[..., :1].expand(-1, -1, STAND_INS - near.shape[-1])
    return torch.cat((near, fill), dim=-1)


def restore_grid(tokens: Tokens, prefix: int) -> Float[Tensor, "batch all width"]:
    """Return the prefix tokens and a vector for every patch, in the order of the grid.

    >>> x = torch.tensor([[[9.0], [1.0], [2.0], [6.0]]])  # CLS and three patches
    >>> before, kept = Tokens.of(x, prefix=1), torch.tensor([[0, 2]])  # the second one is dropped
    >>> after = Tokens(x[:, [0, 1, 3]], kept)
    >>> after = after._replace(grid=update_grid(before, after, Reduction(kept), prefix=1))
    >>> restore_grid(after._replace(x=after.x + 10), prefix=1).flatten()
    tensor([19., 11., 12., 16.])
    """
    if tokens.grid is None:
        return tokens.x
    patches = _mean(tokens.x[:, prefix:], tokens.grid.place) + tokens.grid.offset
    return torch.cat((tokens.x[:, :prefix], patches), dim=1)


def restore_carrying(tokens: Tokens, prefix: int) -> Float[Tensor, "batch all width"]:
    """Return the grid with the tokens attached, which the next block continues with (`Tokens.of`).

    They are attached as plain tuples: torch 2.11 cannot compile a graph that returns a tensor with
    an object. They live as long as the tensor, and so belong to one call.
    """
    grid = restore_grid(tokens, prefix)
    if grid is tokens.x:
        grid = grid.view_as(grid)  # else it would refer to itself
    plain = (tuple(field) if isinstance(field, Reduction | Grid) else field for field in tokens)
    setattr(grid, CARRIED, tuple(plain))
    return grid


def _carried(x: Tensor) -> Tokens:
    tokens = Tokens(*getattr(x, CARRIED))
    reduction, grid = tokens.reduction, tokens.grid
    return tokens._replace(
        reduction=None if reduction is None else Reduction(*reduction),
        grid=None if grid is None else Grid(*grid),
    )
