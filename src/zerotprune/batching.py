"""Parts of a batch: some images of it, batches as one again, chosen tokens of every image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .shapes import Float, Int

#: images, their labels, and which images of the data they are
Batch = tuple[Tensor, Tensor, Tensor]


def select(value: Any, which: slice) -> Any:
    """Some images of a batch, in everything that a (nested) tuple of tensors holds."""
    if isinstance(value, Tensor):
        return value[which]
    if isinstance(value, tuple):
        return type(value)(*(select(field, which) for field in value))
    return value


def concat(values: Sequence[Any]) -> Any:
    """The batches as one again."""
    if isinstance(values[0], Tensor):
        return torch.cat(tuple(values)) if len(values) > 1 else values[0]
    if isinstance(values[0], tuple):
        fields = zip(*values, strict=True)
        return type(values[0])(*(concat(field) for field in fields))
    return values[0]


def take(
    values: Float[Tensor, "batch tokens width"], index: Int[Tensor, "batch chosen"]
) -> Float[Tensor, "batch chosen width"]:
    """The chosen tokens of each image; whole rows at once, which on a CPU is ten times as fast as
    `gather`."""
    batch, tokens, width = values.shape
    first = torch.arange(0, batch * tokens, tokens, device=index.device).unsqueeze(1)
    rows = values.reshape(batch * tokens, width).index_select(0, (index + first).flatten())
    return rows.view(batch, index.shape[1], width)
