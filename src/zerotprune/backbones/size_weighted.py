"""What stands in for a model's forward, so that its head pools tokens by the patches in them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..shapes import Float
from .stand_in import StandIn


@dataclass(frozen=True, eq=False)
class SizeWeighted(StandIn):
    """A model's forward that hands its last block a list, by the keyword `left`. The block appends
    the tokens that leave it, and the head pools by their `weight`: a merged token counts as often
    as there are patches in it, and padding does not count.

    The list lives as long as the call: nothing is shared between threads, copies or nested calls,
    a hook on the last block still sees a plain tensor, and a compiler sees one graph.
    """

    proportional: float  # as the method has it: attention pooling attends likewise


def weighted_mean(
    x: Float[Tensor, "batch tokens width"], weight: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch width"]:
    """Every patch counts once, whatever token it is in.

    >>> x = torch.tensor([[[1.0], [4.0], [9.0]]])
    >>> weighted_mean(x, torch.tensor([[2.0, 1.0, 0.0]]))
    tensor([[2.]])
    """
    share = weight / weight.sum(dim=1, keepdim=True)
    return (x * share.unsqueeze(-1)).sum(dim=1).to(x.dtype)


def weighted_maximum(
    x: Float[Tensor, "batch tokens width"], weight: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch width"]:
    """A patch counts for no more than once in a maximum: only padding is left out.

    >>> x = torch.tensor([[[1.0], [4.0], [9.0]]])
    >>> weighted_maximum(x, torch.tensor([[2.0, 1.0, 0.0]]))
    tensor([[4.]])
    """
    return x.masked_fill((weight == 0).unsqueeze(-1), -torch.inf).amax(dim=1)
