"""Split and join batches, and take some tokens of every image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .shapes import Float, Int

#: images, their labels, and their indices in the data
Batch = tuple[Tensor, Tensor, Tensor]


def select(value: Any, which: slice) -> Any:
    """Take some images of a batch, in all tensors of a (nested) tuple."""
    if isinstance(value, Tensor):
        return value[which]
    if isinstance(value, tuple):
        return type(value)(*(select(field, which) for field in value))
    return value


def concat(values: Sequence[Any]) -> Any:
    """Join batches."""
    if isinstance(values[0], Tensor):
        return torch.cat(tuple(values)) if len(values) > 1 else values[0]
    if isinstance(values[0], tuple):
        fields = zip(*values, strict=True)
        return type(values[0])(*(concat(field) for field in fields))
    return values[0]


def take(
    values: Float[Tensor, "batch tokens width"], index: Int[Tensor, "batch chosen"]
) -> Float[Tensor, "batch chosen width"]:
    """Take some tokens of every image, as whole rows: on a CPU ten times as fast as `gather`."""
    batch, tokens, width = values.shape
    first = torch.arange(0, batch * tokens, tokens, device=index.device).unsqueeze(1)
    rows = values.reshape(batch * tokens, width).index_select(0, (index + first).flatten())
    return rows.view(batch, index.shape[1], width)
