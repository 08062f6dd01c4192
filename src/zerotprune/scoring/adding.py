"""Sums of tokens at the places they are merged into; while exporting by a matrix product.

Runtimes scatter one by one, by an index for every number, and multiply matrices in no time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..shapes import Float, Int
from .ordering import exporting


def add_at(
    values: Float[Tensor, "batch kept *width"],
    places: Int[Tensor, "batch gone"],
    added: Float[Tensor, "batch gone *width"],
) -> Float[Tensor, "batch kept *width"]:
    """The values, to each of which is added what goes to its place."""
    if exporting():
        kept = torch.arange(values.shape[1], device=places.device)
        goes = (places.unsqueeze(1) == kept.unsqueeze(1)).to(values.dtype)
        if added.dim() == 2:
            return values + (goes @ added.unsqueeze(-1)).squeeze(-1)
        return values + goes @ added
    index = places if added.dim() == 2 else places.unsqueeze(-1).expand_as(added)
    return values.scatter_add(1, index, added)
