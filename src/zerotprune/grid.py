"""The grid again: a vector for every patch, from the tokens that are left.

Every patch has a token that stands for it, and what it differed from that token by when it went.
The token goes on through the blocks, and what it gains there the patch gains with it.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .batching import take
from .scoring.precision import no_autocast
from .scoring.scorer import REFERENCE, Scorer
from .scoring.similarity import similarity
from .shapes import Float, Int
from .tokens import CARRIED, Grid, Reduction, Tokens

#: what leaves the model: the tokens that are left, or a vector for every patch
Outputs = Literal["tokens", "grid"]


def check_outputs(outputs: str) -> None:
    if outputs not in get_args(Outputs):
        raise ValueError(f'outputs must be "tokens" or "grid", got {outputs!r}')


def followed(
    before: Tokens, after: Tokens, reduction: Reduction, prefix: int, scorer: Scorer = REFERENCE
) -> Grid:
    """Where every patch of the grid is after a stage, by the tokens before and after it."""
    old, new = before.x[:, prefix:], after.x[:, prefix:]
    with torch.no_grad(), no_autocast(old):
        place = _stand_ins(old, reduction, scorer)
    apart = old - take(new, place)
    if before.grid is None:
        return Grid(place, apart)
    earlier = before.grid.place
    return Grid(place.gather(1, earlier), before.grid.apart + take(apart, earlier))


def _stand_ins(
    features: Float[Tensor, "batch patches width"], reduction: Reduction, scorer: Scorer
) -> Int[Tensor, "batch patches"]:
    """For each patch token that a stage was shown, the place of the one that stands for it from now
    on: itself, the one that it is merged into, or of those that are kept the most like it."""
    keep, merged = reduction.keep, reduction.similar if reduction.into is not None else None
    batch, patches, _ = features.shape
    own = torch.arange(keep.shape[1], device=keep.device).expand(batch, -1)
    if reduction.valid is not None:
        # How many an image drops is not known beforehand: all look, and padding stands for none.
        kept = take(features, keep)
        likeness = similarity(features, kept, "cosine")
        nearest = likeness.masked_fill(~reduction.valid.unsqueeze(1), -torch.inf).argmax(dim=-1)
        mine = torch.where(reduction.valid, own, nearest.gather(1, keep))
        return nearest.scatter(1, keep, mine)
    place = torch.zeros_like(keep[:, :1]).expand(-1, patches).scatter(1, keep, own)
    gone = patches - keep.shape[1]
    stays = torch.ones_like(features[..., 0]).scatter(1, keep, 0.0)
    if merged is not None and reduction.into is not None:
        place = place.scatter(1, merged, reduction.into)
        gone, stays = gone - merged.shape[1], stays.scatter(1, merged, 0.0)
    if gone == 0:
        return place
    dropped = scorer.descending(stays)[:, :gone]
    _, nearest = scorer.nearest(features, dropped, keep)
    return place.scatter(1, dropped, nearest)


def restored(tokens: Tokens, prefix: int) -> Float[Tensor, "batch all width"]:
    """The prefix tokens and a vector for every patch, in the grid's order: its token's, and what it
    differed from that by.

    >>> x = torch.tensor([[[9.0], [1.0], [2.0], [6.0]]])  # CLS and three patches
    >>> before = Tokens.of(x, prefix=1)
    >>> after = Tokens(x[:, [0, 1, 3]], torch.tensor([[0, 2]]))  # the second one is dropped
    >>> after = after._replace(grid=followed(before, after, Reduction(torch.tensor([[0, 2]])), 1))
    >>> restored(after._replace(x=after.x + 10), prefix=1).flatten()
    tensor([19., 11., 12., 16.])
    """
    if tokens.grid is None:
        return tokens.x
    patches = take(tokens.x[:, prefix:], tokens.grid.place) + tokens.grid.apart
    return torch.cat((tokens.x[:, :prefix], patches), dim=1)


def carrying(tokens: Tokens, prefix: int) -> Float[Tensor, "batch all width"]:
    """The whole grid for all who look at it, with the tokens for the next block, which goes on with
    them (`Tokens.of`): they live as long as the tensor, and belong to this one call."""
    grid = restored(tokens, prefix)
    if grid is tokens.x:
        grid = grid.view_as(grid)  # else it would hold itself
    setattr(grid, CARRIED, tokens)
    return grid
