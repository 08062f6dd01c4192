"""Combine the scores of heads, and sort by counting: a rank is the number of larger values.

For the few hundred tokens of an image, counting is one small kernel and sorting is several.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float, Int
from .tiles import kernel, launching, portion


def descending(values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
    """Return the indices that sort each row from largest to smallest; ties keep their order."""
    batch, count = values.shape
    values = values.float().contiguous()
    order = values.new_empty((batch, count), dtype=torch.int64)
    rows = 128
    with launching(values):
        _descending[(batch * triton.cdiv(count, rows),)](
            values, order, count, ROWS=rows, COLUMNS=32, num_warps=4
        )
    return order


def importance(
    score: Float[Tensor, "batch heads tokens"],
    prefix: int,
    variances: tuple[float, float] | None = None,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch patches"]:
    """Return the EIR importance of the patch tokens, over the heads between `variances` (VHF)."""
    batch, heads, tokens = score.shape
    score = score.contiguous()
    out = score.new_empty((batch, tokens - prefix))
    low, high = (0.0, 0.0) if variances is None else variances
    with launching(score):
        _importance[(batch,)](
            score, score if alive is None else alive, out, heads, tokens, prefix,
            LOW=low, HIGH=high, FILTERED=variances is not None, MASKED=alive is not None,
            BLOCK=triton.next_power_of_2(tokens), num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def _key(values):
    """Map floats to integers of the same order. NaN has a place among them too: ranks must be a
    permutation, or indices would be left uninitialized."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # + 0.0 removes negative zero
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@kernel
def _descending(values, order, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    image, first = portion(count, ROWS)
    values += image * count
    order += image * count
    row = first + tl.arange(0, ROWS)
    key = _key(tl.load(values + row, mask=row < count, other=0.0))
    above = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, count, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        other = _key(tl.load(values + column, mask=column < count, other=0.0))
        other = tl.where(column < count, other, -2147483648)  # below all values, and after them
        more = other[None, :] > key[:, None]
        same = (other[None, :] == key[:, None]) & (column[None, :] < row[:, None])
        above += (more | same).to(tl.int32)
    tl.store(order + tl.sum(above, 1), row.to(tl.int64), mask=row < count)


@kernel
def _importance(
    score, alive, out, heads, tokens, prefix,
    LOW: tl.constexpr, HIGH: tl.constexpr, FILTERED: tl.constexpr, MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    score += image * heads * tokens
    token = tl.arange(0, BLOCK)
    patch = (token >= prefix) & (token < tokens)
    if MASKED:
        patch = patch & (tl.load(alive + image * tokens + token, mask=patch, other=0.0) > 0)
    count = tl.sum(patch.to(tl.float32), 0)
    every = tl.zeros([BLOCK], tl.float32)
    chosen = tl.zeros([BLOCK], tl.float32)
    inside = 0.0
    for head in range(heads):
        head_score = tl.load(score + head * tokens + token, mask=patch, other=0.0)
        square = head_score * head_score
        every += square
        if FILTERED:
            mean = tl.sum(head_score, 0) / count
            spread = tl.where(patch, head_score / mean - 1, 0.0)
            variance = tl.sum(spread * spread, 0) / count
            passes = ((variance >= LOW) & (variance <= HIGH)).to(tl.float32)
            chosen += passes * square
            inside += passes
    mean_square = every / heads
    if FILTERED:  # if no head passes, all of them count
        mean_square = tl.where(inside > 0, chosen / tl.maximum(inside, 1.0), mean_square)
    inside_grid = (token >= prefix) & (token < tokens)
    tl.store(out + image * (tokens - prefix) + token - prefix, tl.sqrt(mean_square),
             mask=inside_grid)  # fmt: skip
