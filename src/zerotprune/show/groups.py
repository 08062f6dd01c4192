"""Groups: the patches that were merged into one token, where they end, and their mean colour."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..shapes import Bool, Float, Int
from ..tracing import Fate, StageTrace

DROPPED, GONE = -1, -2  # no token any more: since this stage, since an earlier one


def follow_tokens(stages: Sequence[StageTrace]) -> list[Int[Tensor, "batch patches"]]:
    """For each stage of a method that merges, the token that holds each patch by then: it is named
    by the patch where it stands. DROPPED for a patch whose token goes there, GONE later on.

    A token that is merged or dropped takes along all the patches that were merged into it before.
    """
    after: list[Tensor] = []
    for stage in stages:
        stands = torch.arange(stage.fate.shape[1], device=stage.fate.device).expand_as(stage.fate)
        goes = torch.where(stage.partner >= 0, stage.partner, stands)
        goes = goes.masked_fill(stage.fate == Fate.UNIMPORTANT, DROPPED)
        held = after[-1] if after else stands
        after.append(torch.where(held < 0, GONE, goes.gather(1, held.clamp(min=0))))
    return after


def find_shared(token: Int[Tensor, "rows cols"]) -> Bool[Tensor, "rows cols"]:
    """The patches whose token holds others too.

    >>> find_shared(torch.tensor([[0, 0, 2], [-1, -1, 5]]))
    tensor([[ True,  True, False],
            [False, False, False]])
    """
    flat = token.flatten()
    held = flat >= 0
    sizes = torch.bincount(flat[held], minlength=flat.numel())
    return (held & (sizes[flat.clamp(min=0)] > 1)).reshape(token.shape)


def find_borders(
    token: Int[Tensor, "rows cols"],
) -> tuple[Bool[Tensor, "rows cols-1"], Bool[Tensor, "rows-1 cols"]]:
    """Between which patches the outline of a group runs: side by side, and one above the other.

    Patches on their own need no outline: it would only hide them.
    """
    shared = find_shared(token)
    beside = (token[:, 1:] != token[:, :-1]) & (shared[:, 1:] | shared[:, :-1])
    above = (token[1:] != token[:-1]) & (shared[1:] | shared[:-1])
    return beside, above


def blend_colours(
    colours: Float[Tensor, "rows cols 3"], token: Int[Tensor, "rows cols"]
) -> Float[Tensor, "rows cols 3"]:
    """The mean colour of each patch's group; a patch on its own, or dropped, keeps its colour."""
    flat, held = colours.reshape(-1, 3), token.flatten()
    places = torch.arange(len(held), device=held.device)
    group = torch.where(held < 0, places, held)  # nothing else stands where a dropped patch stood
    total = torch.zeros_like(flat).index_add(0, group, flat)
    count = torch.bincount(group, minlength=len(held))[:, None]
    return (total / count.clamp(min=1))[group].reshape(colours.shape)
