"""Order and choice among values, of equals the first; while exporting, the same in any runtime.

Runtimes do not agree on how they sort equal values, and some have no stable sort. So an exported
model sorts nothing: it counts how many come before each value, which knows no equals.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..shapes import Float, Int

#: torch 2.6 cannot tell, and `export` refuses it
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def exporting() -> bool:
    """Is the model being exported, to run without this library and perhaps without torch?"""
    # Where it compiles, torch 2.11 says that it exports as well.
    return is_exporting() and not torch.compiler.is_dynamo_compiling()


def descending(values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """The places of the values, the largest first; of equal values the first one first."""
    if exporting():
        return _placed(_rank(values))
    return values.argsort(dim=-1, descending=True, stable=True)


def top(values: Float[Tensor, "batch places"], count: int) -> Int[Tensor, "batch {count}"]:
    """The places of the largest values, the largest first."""
    if exporting():
        return _placed(_rank(values))[:, :count]
    return values.topk(count, dim=-1).indices


def parted(
    values: Float[Tensor, "batch places"],
    count: int,
    order: Callable[[Tensor], Tensor] = descending,
) -> tuple[Int[Tensor, "batch {count}"], Int[Tensor, "batch others"]]:
    """The places of the `count` largest values, the largest first; and the others in their order,
    the first place first."""
    if exporting():
        rank = _rank(values)
        # The others go behind by their places, which are no values and have no equals.
        stays = (rank >= count).to(values.dtype)
        behind = count + stays.cumsum(dim=-1).to(rank.dtype) - 1
        ranked = _placed(torch.where(rank < count, rank, behind))
        return ranked[:, :count], ranked[:, count:]
    ranked = order(values)
    return ranked[:, :count], ranked[:, count:].sort(dim=-1).values


def largest(
    values: Float[Tensor, "*any places"],
) -> tuple[Float[Tensor, "*any"], Int[Tensor, "*any"]]:
    """The largest value of each row and its place, of equals the first."""
    if not exporting():
        best, place = values.max(dim=-1)
        return best, place
    count = values.shape[-1]
    best = values.amax(dim=-1, keepdim=True)
    # Whole numbers as floats, which runtimes reduce faster: exact up to 2²⁴ places.
    early = torch.arange(count, 0, -1, device=values.device, dtype=torch.float32)
    first = count - torch.where(values == best, early, 0.0).amax(dim=-1)
    return best.squeeze(-1), first.to(torch.int64)


def _rank(values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """How many values come before each: all that are larger, and equal ones at earlier places."""
    count = values.shape[-1]
    place = torch.arange(count, device=values.device)
    earlier = place < place.unsqueeze(1)
    own, other = values.unsqueeze(-1), values.unsqueeze(-2)
    before = (other > own) | ((other == own) & earlier)
    return before.to(torch.float32).sum(dim=-1).to(torch.int64)


def _placed(rank: Int[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """The places in the order of their ranks."""
    place = torch.arange(rank.shape[1], device=rank.device).expand_as(rank)
    return torch.zeros_like(rank).scatter(1, rank, place)
