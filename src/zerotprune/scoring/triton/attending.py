"""Attention in proportion to the sizes of tokens, and what each of them receives.

A size is the logarithm that it adds to the logits: one more term of an exponent where attention
is computed, and a factor of all that goes to a token where only that is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from .tiles import LOG2_E, exp2, head_width, kernel, launching, portion, tokens_of


class Columns(NamedTuple):
    """What is left of an attention graph that was never written down."""

    sums: Float[Tensor, "batch heads tokens"]  # of its columns
    first: Float[Tensor, "batch heads tokens"]  # the row of token 0
    alive: None = None

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        if token != 0:
            raise ValueError(f"only the row of token 0 was kept, not that of {token}")
        return self.first

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        return self.sums / self.sums.shape[-1]


def attend(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    v: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"],
) -> tuple[Float[Tensor, "batch heads tokens width"], Float[Tensor, "batch heads tokens"]]:
    """Attention's output, and the logarithms, to base 2, of what its rows are divided by."""
    batch, heads, tokens, width = q.shape
    # In memory the heads of a token stand side by side, as what comes next wants them.
    out = q.new_empty((batch, tokens, heads, width)).transpose(1, 2)
    sums = q.new_empty((batch, heads, tokens), dtype=torch.float32)
    with launching(q):
        _attend[(lambda meta: (batch * heads * triton.cdiv(tokens, meta["ROWS"]),))](
            q, k, v, size.contiguous(), out, sums,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, **_tile(q),
        )  # fmt: skip
    return out, sums


def _tile(q: Tensor) -> dict[str, int]:
    """What was fastest on an H200. Few tokens in half precision are for `whole`."""
    if q.dtype == torch.float32:
        return {"ROWS": 64, "SPAN": 32, "num_warps": 4, "num_stages": 2}
    return {"ROWS": 128, "SPAN": 64, "num_warps": 4, "num_stages": 3}


def columns(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    sums: Float[Tensor, "batch heads tokens"],
    size: Float[Tensor, "batch tokens"] | None,
) -> Columns:
    """What each token receives from all and from token 0, given the logarithms of the row sums."""
    batch, heads, tokens, _ = q.shape
    received, first = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    half = q.dtype != torch.float32
    rows = 128 if half and tokens > 64 else 64
    with launching(q):
        _columns[(batch * heads * triton.cdiv(tokens, rows),)](
            q, k, sums, q if size is None else size.contiguous(), received, first,
            *q.stride()[:3], *k.stride()[:3], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=rows,
            SPAN=64 if half and tokens > 600 else 32, SIZED=size is not None,
            num_warps=4, num_stages=3,
        )  # fmt: skip
    return Columns(received, first)


@kernel
def _attend(
    q, k, v, size, out, sums,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    o_batch, o_head, o_token, heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    graph, begin = portion(tokens, ROWS)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    out += batch * o_batch + head * o_head
    size += batch * tokens
    voters = tokens_of(q, q_token, begin, tokens, ROWS, WIDTH, PADDED)
    # Finite: where a whole tile is padding, nothing is subtracted from nothing.
    largest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    for start in range(0, tokens, SPAN):
        token = start + tl.arange(0, SPAN)
        mass = tl.load(size + token, mask=token < tokens, other=0.0)
        lift = tl.where(mass > 0, tl.log2(tl.where(mass > 0, mass, 1.0)), float("-inf"))
        chosen = tokens_of(k, k_token, start, tokens, SPAN, WIDTH, PADDED)
        logits = tl.dot(voters, tl.trans(chosen), input_precision=PRECISION) * SCALE
        logits += lift[None, :]
        higher = tl.maximum(largest, tl.max(logits, 1))
        paid = exp2(logits - higher[:, None])
        fall = exp2(largest - higher)
        total = total * fall + tl.sum(paid, 1)
        mixed = mixed * fall[:, None]
        values = tokens_of(v, v_token, start, tokens, SPAN, WIDTH, PADDED)
        mixed = tl.dot(paid.to(values.dtype), values, mixed, input_precision=PRECISION)
        largest = higher
    row = begin + tl.arange(0, ROWS)
    place = tl.arange(0, PADDED)
    inside = (row < tokens)[:, None] & (place < WIDTH)[None, :]
    mixed = mixed * (1 / total)[:, None]
    tl.store(out + row[:, None] * o_token + place[None, :], mixed.to(out.dtype.element_ty),
             mask=inside)  # fmt: skip
    tl.store(sums + graph * tokens + row, largest + tl.log2(total), mask=row < tokens)


@kernel
def _columns(
    q, k, sums, size, received, first,
    q_batch, q_head, q_token, k_batch, k_head, k_token, heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, SPAN: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """Who is voted for stands in the rows, as in `voting._round`."""
    graph, begin = portion(tokens, ROWS)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    sums += graph * tokens
    chosen = tokens_of(k, k_token, begin, tokens, ROWS, WIDTH, PADDED)
    voter = tl.arange(0, SPAN)
    votes = tl.zeros([ROWS, 8], tl.float32)
    of_first = tl.zeros([ROWS], tl.float32)
    for start in range(0, tokens, SPAN):
        voters = tokens_of(q, q_token, start, tokens, SPAN, WIDTH, PADDED)
        # Beyond the last token nobody votes.
        total = tl.load(sums + start + voter, mask=start + voter < tokens, other=float("inf"))
        logits = tl.dot(chosen, tl.trans(voters), input_precision=PRECISION) * SCALE
        paid = exp2(logits - total[None, :])
        votes += tl.sum(tl.reshape(paid, [ROWS, SPAN // 8, 8]), 1)  # within the threads
        if start == 0:
            of_first = tl.sum(tl.where((voter == 0)[None, :], paid, 0.0), 1)
    found = tl.sum(votes, 1)
    token = begin + tl.arange(0, ROWS)
    if SIZED:
        mass = tl.load(size + batch * tokens + token, mask=token < tokens, other=0.0)
        found, of_first = found * mass, of_first * mass
    tl.store(received + graph * tokens + token, found, mask=token < tokens)
    tl.store(first + graph * tokens + token, of_first, mask=token < tokens)
