"""Sort, take and add by index; split and join batches.

Ties always go to the lower index. Runtimes disagree on how they sort ties, and some have no stable
sort, so an exported model sorts nothing: it counts how many values come before each one. It adds
by a matrix product, as runtimes scatter one number at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..shapes import Float, Int

#: torch 2.6 does not have it, and `export` refuses torch 2.6
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def exporting() -> bool:
    """Return whether the model is being exported, to run without this library or even torch."""
    # While it compiles, torch 2.11 says that it exports as well.
    return is_exporting() and not torch.compiler.is_dynamo_compiling()


def descending(values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """Return the indices that sort each row from largest to smallest."""
    if exporting():
        return _indices_by(_rank(values))
    return values.argsort(dim=-1, descending=True, stable=True)


def top(values: Float[Tensor, "batch all"], count: int) -> Int[Tensor, "batch {count}"]:
    """Return the indices of the `count` largest values of each row, the largest first."""
    if exporting():
        return _indices_by(_rank(values))[:, :count]
    return values.topk(count, dim=-1).indices


def split_top(
    values: Float[Tensor, "batch all"],
    count: int,
    order: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Int[Tensor, "batch {count}"], Int[Tensor, "batch others"]]:
    """Return the indices of the `count` largest values, the largest first, and all other indices
    in ascending order. `order` sorts as `descending`, for a faster way."""
    # Compiled for a GPU, counting is one kernel and sorting is several.
    if exporting() or (values.is_cuda and torch.compiler.is_compiling()):
        rank = _rank(values)
        # Give the others the ranks from `count` on, in the order of their indices.
        others = (rank >= count).to(values.dtype)
        behind = count + others.cumsum(dim=-1).to(rank.dtype) - 1
        indices = _indices_by(torch.where(rank < count, rank, behind))
        return indices[:, :count], indices[:, count:]
    if order is None:
        indices = values.argsort(dim=-1, descending=True, stable=True)
    else:
        indices = order(values)
    return indices[:, :count], indices[:, count:].sort(dim=-1).values


def largest(
    values: Float[Tensor, "*any"], dim: int = -1
) -> tuple[Float[Tensor, "*other"], Int[Tensor, "*other"]]:
    """Return the maxima over a dimension and their indices."""
    if not exporting():
        best, index = values.max(dim=dim)
        return best, index
    values = values.movedim(dim, -1)
    count = values.shape[-1]
    best = values.amax(dim=-1, keepdim=True)
    # Whole numbers as floats, which runtimes reduce faster: exact up to 2²⁴.
    from_end = torch.arange(count, 0, -1, device=values.device, dtype=torch.float32)
    first = count - torch.where(values == best, from_end, 0.0).amax(dim=-1)
    return best.squeeze(-1), first.to(torch.int64)


def _rank(values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """Count how many values come before each one: the larger ones, and ties at lower indices."""
    index = torch.arange(values.shape[-1], device=values.device)
    lower = index < index.unsqueeze(1)
    value, other = values.unsqueeze(-1), values.unsqueeze(-2)
    before = (other > value) | ((other == value) & lower)
    return before.to(torch.float32).sum(dim=-1).to(torch.int64)


def _indices_by(rank: Int[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """Invert a permutation: return the index that has each rank."""
    index = torch.arange(rank.shape[1], device=rank.device).expand_as(rank)
    return torch.zeros_like(rank).scatter(1, rank, index)


def take(
    values: Float[Tensor, "batch tokens width"], indices: Int[Tensor, "batch chosen"]
) -> Float[Tensor, "batch chosen width"]:
    """Take tokens of every image by index. On a CPU, whole rows are ten times as fast as
    `gather`."""
    if _is_single(indices):
        return values.index_select(1, indices[0])
    batch, tokens, width = values.shape
    rows = values.reshape(batch * tokens, width).index_select(0, _row_of(indices, tokens))
    return rows.view(batch, indices.shape[1], width)


def add_at(
    indices: Int[Tensor, "batch gone"], *pairs: tuple[Tensor, Tensor]
) -> list[Float[Tensor, "batch kept *width"]]:
    """Add to values, the first of each pair, the updates, which are the second, at `indices`."""
    if exporting():
        return [_add_by_product(indices, *pair) for pair in pairs]
    rows = indices.device.type == "cpu" and not torch.compiler.is_compiling()
    totals = []
    for values, updates in pairs:
        if updates.dim() == 2:
            totals.append(values.scatter_add(1, indices, updates))
        elif rows:
            totals.append(_add_rows(indices, values, updates))
        else:
            index = indices.unsqueeze(-1).expand_as(updates)
            totals.append(values.scatter_add(1, index, updates))
    return totals


def _add_by_product(
    indices: Int[Tensor, "batch gone"],
    values: Float[Tensor, "batch kept *width"],
    updates: Float[Tensor, "batch gone *width"],
) -> Float[Tensor, "batch kept *width"]:
    kept = torch.arange(values.shape[1], device=indices.device)
    one_hot = (indices.unsqueeze(1) == kept.unsqueeze(1)).to(values.dtype)
    if updates.dim() == 2:
        return values + (one_hot @ updates.unsqueeze(-1)).squeeze(-1)
    return values + one_hot @ updates


def _add_rows(
    indices: Int[Tensor, "batch gone"],
    values: Float[Tensor, "batch kept width"],
    updates: Float[Tensor, "batch gone width"],
) -> Float[Tensor, "batch kept width"]:
    """Add whole rows, which on a CPU is several times as fast as number by number."""
    if _is_single(indices):
        return values.index_add(1, indices[0], updates)
    total = values.clone(memory_format=torch.contiguous_format)
    rows = _row_of(indices, values.shape[1])
    total.flatten(0, 1).index_add_(0, rows, updates.flatten(0, 1))
    return total


def _is_single(indices: Int[Tensor, "batch chosen"]) -> bool:
    """Return whether there is one image, for a shorter way. A compiler or tracer must not read the
    size of the batch: its graph would be for that size only."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    return indices.shape[0] == 1


def _row_of(indices: Int[Tensor, "batch chosen"], tokens: int) -> Int[Tensor, " rows"]:
    """Return the rows of all images' tokens, one below the other, that `indices` mean."""
    batch, device = indices.shape[0], indices.device
    offset = torch.arange(0, batch * tokens, tokens, device=device).unsqueeze(1)
    return (indices + offset).flatten()


def select(value: Any, images: slice) -> Any:
    """Take some images of a batch, in all tensors of a (nested) tuple."""
    if isinstance(value, Tensor):
        return value[images]
    if isinstance(value, tuple):
        return type(value)(*(select(field, images) for field in value))
    return value


def concat(batches: Sequence[Any]) -> Any:
    """Join batches, the inverse of `select`."""
    if isinstance(batches[0], Tensor):
        return torch.cat(tuple(batches)) if len(batches) > 1 else batches[0]
    if isinstance(batches[0], tuple):
        fields = zip(*batches, strict=True)
        return type(batches[0])(*(concat(field) for field in fields))
    return batches[0]
