"""Attention over few tokens in half precision: one program holds all keys and values of a head.

It sees whole rows, so no maximum is corrected later, and the column sums need no second pass. They
are added in the same order every time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from .tiles import LOG2_E, exp2, head_width, kernel, launching, tokens_of

#: the most keys that fit …
MOST = 256
#: … and the most that fit together with the column sums
MOST_SUMMED = 160


def attend(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    v: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"] | None,
) -> tuple[Float[Tensor, "batch heads tokens width"], Float[Tensor, "batch heads tokens"]]:
    """Return the output, and the base-2 logarithms of the softmax denominators."""
    out, (sums,) = _launch(q, k, v, scale, size, summed=False)
    return out, sums


def attend_with_columns(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    v: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"] | None,
) -> tuple[
    Float[Tensor, "batch heads tokens width"],
    Float[Tensor, "batch heads tokens"],
    Float[Tensor, "batch heads tokens"],
]:
    """Return the output, the column sums of the graph, and its first row."""
    out, (received, first) = _launch(q, k, v, scale, size, summed=True)
    return out, received, first


def fits(q: Float[Tensor, "batch heads tokens width"], most: int = MOST) -> bool:
    return q.dtype != torch.float32 and q.shape[2] <= most and q.shape[3] <= 64


def _launch(
    q: Tensor, k: Tensor, v: Tensor, scale: float, size: Tensor | None, summed: bool
) -> tuple[Tensor, Any]:
    batch, heads, tokens, width = q.shape
    # In memory the heads of a token are contiguous, as the projection reads them.
    out = q.new_empty((batch, tokens, heads, width)).transpose(1, 2)
    sums = q.new_empty((2 if summed else 1, batch, heads, tokens), dtype=torch.float32)
    a, b, c = PARTS[tokens]
    with launching(q):
        _whole[(batch * heads,)](
            q, k, v, q if size is None else size.contiguous(), out, sums[0], sums[-1],
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=64, A=a, B=b, C=c,
            SIZED=size is not None, SUMMED=summed, num_warps=4, num_stages=2,
        )  # fmt: skip
    return out, sums.unbind(0)


def _parts(tokens: int) -> tuple[int, int, int]:
    """Split the keys as was fastest on an H200: up to 128 in one part, more in up to three powers
    of two with the least padding."""
    if tokens <= 128:
        return (64 if tokens <= 64 else 128, 0, 0)
    rest = [(b, c) for b in (16, 32, 64, 128) for c in (0, 16, 32, 64) if c < b]
    b, c = min((b + c, c, b, c) for b, c in rest if 128 + b + c >= tokens)[2:]
    return (128, b, c)


#: by the number of tokens; a table, because the compiler cannot trace the function
PARTS = [_parts(tokens) for tokens in range(MOST + 1)]


@kernel
def _whole(
    q, k, v, size, out, sums, first,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    o_batch, o_head, o_token, heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
    SIZED: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """Keys and values come in up to three parts: A, B and C.

    `sums` are the column sums if SUMMED, else the logarithms of the row sums.
    """
    graph = tl.program_id(0).to(tl.int64)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    out += batch * o_batch + head * o_head
    size += batch * tokens
    sums += graph * tokens
    first += graph * tokens
    keys_a = tokens_of(k, k_token, 0, tokens, A, WIDTH, PADDED)
    values_a = tokens_of(v, v_token, 0, tokens, A, WIDTH, PADDED)
    lift_a = _lift(size, 0, tokens, A, SIZED)
    if SUMMED:
        received_a = tl.zeros([ROWS, A], tl.float32)
    if B > 0:
        keys_b = tokens_of(k, k_token, A, tokens, B, WIDTH, PADDED)
        values_b = tokens_of(v, v_token, A, tokens, B, WIDTH, PADDED)
        lift_b = _lift(size, A, tokens, B, SIZED)
        if SUMMED:
            received_b = tl.zeros([ROWS, B], tl.float32)
    if C > 0:
        keys_c = tokens_of(k, k_token, A + B, tokens, C, WIDTH, PADDED)
        values_c = tokens_of(v, v_token, A + B, tokens, C, WIDTH, PADDED)
        lift_c = _lift(size, A + B, tokens, C, SIZED)
        if SUMMED:
            received_c = tl.zeros([ROWS, C], tl.float32)
    place = tl.arange(0, PADDED)
    for begin in range(0, tokens, ROWS):
        row = begin + tl.arange(0, ROWS)
        voters = tokens_of(q, q_token, begin, tokens, ROWS, WIDTH, PADDED)
        paid_a = tl.dot(voters, tl.trans(keys_a)) * SCALE + lift_a[None, :]
        largest = tl.max(paid_a, 1)
        if B > 0:
            paid_b = tl.dot(voters, tl.trans(keys_b)) * SCALE + lift_b[None, :]
            largest = tl.maximum(largest, tl.max(paid_b, 1))
        if C > 0:
            paid_c = tl.dot(voters, tl.trans(keys_c)) * SCALE + lift_c[None, :]
            largest = tl.maximum(largest, tl.max(paid_c, 1))
        paid_a = exp2(paid_a - largest[:, None])
        total = tl.sum(paid_a, 1)
        mixed = tl.dot(paid_a.to(values_a.dtype), values_a)
        if B > 0:
            paid_b = exp2(paid_b - largest[:, None])
            total += tl.sum(paid_b, 1)
            mixed = tl.dot(paid_b.to(values_b.dtype), values_b, mixed)
        if C > 0:
            paid_c = exp2(paid_c - largest[:, None])
            total += tl.sum(paid_c, 1)
            mixed = tl.dot(paid_c.to(values_c.dtype), values_c, mixed)
        share = tl.where(row < tokens, 1 / total, 0.0)
        inside = (row < tokens)[:, None] & (place < WIDTH)[None, :]
        mixed *= share[:, None]
        tl.store(out + row[:, None] * o_token + place[None, :], mixed.to(out.dtype.element_ty),
                 mask=inside)  # fmt: skip
        if not SUMMED:
            tl.store(sums + row, largest + tl.log2(total), mask=row < tokens)
        else:
            paid_a *= share[:, None]
            received_a += paid_a
            _store_first(first, paid_a, row, 0, tokens, A)
            if B > 0:
                paid_b *= share[:, None]
                received_b += paid_b
                _store_first(first, paid_b, row, A, tokens, B)
            if C > 0:
                paid_c *= share[:, None]
                received_c += paid_c
                _store_first(first, paid_c, row, A + B, tokens, C)
    if SUMMED:
        _store(sums, tl.sum(received_a, 0), 0, tokens, A)
        if B > 0:
            _store(sums, tl.sum(received_b, 0), A, tokens, B)
        if C > 0:
            _store(sums, tl.sum(received_c, 0), A + B, tokens, C)


@triton.jit
def _lift(size, begin, tokens, COUNT: tl.constexpr, SIZED: tl.constexpr):
    """Return what is added to the logits of some keys: −inf for padding and beyond the last."""
    token = begin + tl.arange(0, COUNT)
    mass = (token < tokens).to(tl.float32)
    if SIZED:
        mass = tl.load(size + token, mask=token < tokens, other=0.0)
    return tl.where(mass > 0, tl.log2(tl.where(mass > 0, mass, 1.0)), float("-inf"))


@triton.jit
def _store(to, values, begin, tokens, COUNT: tl.constexpr):
    token = begin + tl.arange(0, COUNT)
    tl.store(to + token, values, mask=token < tokens)


@triton.jit
def _store_first(to, paid, row, begin, tokens, COUNT: tl.constexpr):
    """Store row 0, by the threads that hold it."""
    token = begin + tl.arange(0, COUNT)
    here = (row == 0)[:, None] & (token < tokens)[None, :]
    tl.store(to + token[None, :] + 0 * row[:, None], paid, mask=here)
