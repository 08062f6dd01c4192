"""Restore the grid: a vector for every patch, from the tokens that are left.

When a patch is removed, other tokens stand for it, and its difference from their mean is kept. The
tokens change in later blocks; adding the difference to their mean gives the patch the same change.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .batching import take
from .scoring.precision import no_autocast
from .scoring.similarity import similarity
from .shapes import Float, Int
from .tokens import Grid, Reduction, Tokens, carry

#: what the model returns: the tokens that are left, or a vector for every patch
Outputs = Literal["tokens", "grid"]

#: How many tokens stand for a dropped patch: the most similar ones. A power of two, so that the
#: mean of equal vectors is that vector, bit for bit.
STAND_INS = 4


def check_outputs(outputs: str) -> None:
    if outputs not in get_args(Outputs):
        raise ValueError(f'outputs must be "tokens" or "grid", got {outputs!r}')


def followed(before: Tokens, after: Tokens, reduction: Reduction, prefix: int) -> Grid:
    """Return where every patch of the grid is after a stage, from the tokens before and after."""
    old, new = before.x[:, prefix:], after.x[:, prefix:]
    with torch.no_grad(), no_autocast(old):
        place = _stand_ins(old, reduction)
    if before.grid is None:
        return Grid(place, old - _mean(new, place))
    stood = before.grid.place
    slots = max(stood.shape[-1], place.shape[-1])
    # The first stand-in of a patch's first stand-in becomes its first, and so on.
    stands = place.expand(-1, -1, slots).gather(1, stood.expand(-1, -1, slots))
    return Grid(stands, before.grid.apart + (_mean(old, stood) - _mean(new, stands)))


def _mean(
    x: Float[Tensor, "batch tokens width"], place: Int[Tensor, "batch grid slots"]
) -> Float[Tensor, "batch grid width"]:
    """Return for every patch the mean of the tokens that stand for it."""
    batch, patches, slots = place.shape
    vectors = take(x, place.flatten(1)).view(batch, patches, slots, -1)
    while vectors.shape[2] > 1:  # by halves: the mean of equal vectors is then exact
        half = vectors.shape[2] // 2
        vectors = (vectors[:, :, :half] + vectors[:, :, half:]) / 2
    return vectors.squeeze(2)


def _stand_ins(
    features: Float[Tensor, "batch patches width"], reduction: Reduction
) -> Int[Tensor, "batch patches slots"]:
    """Return for every patch token that a stage saw which kept tokens stand for it.

    That is the token itself, the one it is merged into, or the most similar of the kept ones.
    """
    keep, merged, valid = reduction.keep, reduction.similar, reduction.valid
    batch, patches, _ = features.shape
    itself = torch.arange(keep.shape[1], device=keep.device).expand(batch, -1).unsqueeze(-1)
    if valid is not None:
        # How many an image drops is not known in advance, so all tokens look for stand-ins. Padding
        # stands for none, unless nothing else is left.
        valid = valid | ~valid.any(dim=1, keepdim=True)
        near = _nearest(features, take(features, keep), valid)
        at = keep.unsqueeze(-1).expand(-1, -1, STAND_INS)
        return near.scatter(1, at, torch.where(valid.unsqueeze(-1), itself, near.gather(1, at)))
    place = torch.zeros_like(itself[:, :1]).expand(-1, patches, -1)
    place = place.scatter(1, keep.unsqueeze(-1), itself)
    gone, lost = patches - keep.shape[1], torch.ones_like(features[..., 0]).scatter(1, keep, 0.0)
    if merged is not None and reduction.into is not None:
        place = place.scatter(1, merged.unsqueeze(-1), reduction.into.unsqueeze(-1))
        gone, lost = gone - merged.shape[1], lost.scatter(1, merged, 0.0)
    if gone == 0:
        return place
    dropped = lost.topk(gone, dim=1).indices
    near = _nearest(take(features, dropped), take(features, keep))
    at = dropped.unsqueeze(-1).expand(-1, -1, STAND_INS)
    return place.repeat(1, 1, STAND_INS).scatter(1, at, near)


def _nearest(
    features: Float[Tensor, "batch some width"],
    among: Float[Tensor, "batch kept width"],
    valid: Tensor | None = None,
) -> Int[Tensor, "batch some slots"]:
    """Return the indices of the most similar ones by cosine, with repetition if there are few."""
    likeness = similarity(features, among, "cosine")
    if valid is not None:
        likeness = likeness.masked_fill(~valid.unsqueeze(1), -torch.inf)
    best = likeness.topk(min(STAND_INS, among.shape[1]), dim=-1)
    near = torch.where(best.values == -torch.inf, best.indices[..., :1], best.indices)
    again = near[..., :1].expand(-1, -1, STAND_INS - near.shape[-1])
    return torch.cat((near, again), dim=-1)


def restored(tokens: Tokens, prefix: int) -> Float[Tensor, "batch all width"]:
    """Return the prefix tokens and a vector for every patch, in the order of the grid.

    >>> x = torch.tensor([[[9.0], [1.0], [2.0], [6.0]]])  # CLS and three patches
    >>> before, kept = Tokens.of(x, prefix=1), torch.tensor([[0, 2]])  # the second one is dropped
    >>> after = Tokens(x[:, [0, 1, 3]], kept)
    >>> after = after._replace(grid=followed(before, after, Reduction(kept), prefix=1))
    >>> restored(after._replace(x=after.x + 10), prefix=1).flatten()
    tensor([19., 11., 12., 16.])
    """
    if tokens.grid is None:
        return tokens.x
    patches = _mean(tokens.x[:, prefix:], tokens.grid.place) + tokens.grid.apart
    return torch.cat((tokens.x[:, :prefix], patches), dim=1)


def carrying(tokens: Tokens, prefix: int) -> Float[Tensor, "batch all width"]:
    """Return the whole grid, which carries the tokens that the next block continues with.

    See `Tokens.of`. The tokens live as long as the tensor, so they belong to this one call.
    """
    grid = restored(tokens, prefix)
    if grid is tokens.x:
        grid = grid.view_as(grid)  # otherwise it would refer to itself
    carry(grid, tokens)
    return grid
