"""What each token receives of an attention graph that is never written down.

The size of a token, which attention goes in proportion to, is a factor of all that goes to it.
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
