"""Positions between tokens that have moved: a relative bias follows them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tokens import Tokens


def bias_among(bias: Tensor, tokens: Tokens, queries: int | None) -> Tensor:
    """The relative bias of those that ask to those that are left, prefix tokens first."""
    table = bias.reshape(bias.shape[-3:])
    batch, patches = tokens.source.shape
    prefix = tokens.x.shape[1] - patches
    first = torch.arange(prefix, device=bias.device).expand(batch, -1)
    index = torch.cat((first, tokens.source + prefix), dim=1)
    return table[:, index[:, :queries].unsqueeze(2), index.unsqueeze(1)].transpose(0, 1)
