"""Sums of the rows and columns of an attention graph that is never in memory, and single rows.

Attention is proportional to the size of a token, which is a factor of all that it receives.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float, Int
from ..attention import ColumnSums
from .tiles import LOG2_E, exp2, head_width, kernel, launching, portion, tokens_of

_ROWS = 64


def log_sums(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
) -> Float[Tensor, "batch heads tokens"]:
    """Return the base-2 logarithm of the softmax denominator of each row."""
    batch, heads, tokens, _ = q.shape
    out = q.new_empty((batch, heads, tokens), dtype=torch.float32)
    with launching(q):
        _log_sums[(batch * heads * triton.cdiv(tokens, _ROWS),)](
            q, k, out, *q.stride()[:3], *k.stride()[:3], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=_ROWS, COLUMNS=64,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


def log_sums_without(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    sums: Float[Tensor, "batch heads tokens"],
    dropped: Int[Tensor, "batch dropped"],
    alive: Float[Tensor, "batch tokens"],
) -> Float[Tensor, "batch heads tokens"]:
    """Return `log_sums` over the living tokens: `sums` less what the dropped ones received.

    If they received nearly all of a row, the difference would lose precision, so the living tokens
    are summed instead.
    """
    batch, heads, tokens, _ = q.shape
    dropped, out = dropped.contiguous(), torch.empty_like(sums)
    columns = min(64, max(16, triton.next_power_of_2(dropped.shape[1])))
    with launching(q):
        _log_sums_without[(batch * heads * triton.cdiv(tokens, _ROWS),)](
            q, k, sums, dropped, alive, out, *q.stride()[:3], *k.stride()[:3],
            heads, tokens, dropped.shape[1],
            **head_width(q), SCALE=scale * LOG2_E, ROWS=_ROWS, COLUMNS=columns,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


def row(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    sums: Float[Tensor, "batch heads tokens"],
    token: int,
) -> Float[Tensor, "batch heads tokens"]:
    """Return the attention that one token pays to all."""
    batch, heads, tokens, _ = q.shape
    out = torch.empty_like(sums)
    widths = head_width(q)
    with launching(q):
        _row[(batch * heads * triton.cdiv(tokens, _ROWS),)](
            q, k, sums, out, *q.stride()[:3], *k.stride()[:3], heads, tokens, token,
            SCALE=scale * LOG2_E, WIDTH=widths["WIDTH"], PADDED=widths["PADDED"], ROWS=_ROWS,
            num_warps=4,
        )  # fmt: skip
    return out


def columns(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    sums: Float[Tensor, "batch heads tokens"],
    size: Float[Tensor, "batch tokens"] | None,
) -> ColumnSums:
    """Return what each token receives from all tokens and from token 0.

    Args:
        sums: The logarithms of the row sums, see `log_sums`.
        size: Of each token: attention is proportional to it.
    """
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
    return ColumnSums.of(first, received)


def sampled(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"] | None,
    rows: range,
    with_first: bool,
) -> tuple[Float[Tensor, "batch heads tokens"], Float[Tensor, "batch heads tokens"]]:
    """Return the mean of some rows of the graph, and row 0 if `with_first`.

    Reads the keys twice, and writes neither them nor the logits to memory in float32.
    """
    batch, heads, tokens, _ = q.shape
    mean, first = (q.new_empty((batch, heads, tokens), dtype=torch.float32) for _ in range(2))
    with launching(q):
        _sampled[(batch * heads,)](
            q, k, q if size is None else size.contiguous(), mean, first,
            *q.stride()[:3], *k.stride()[:3], heads, tokens, len(rows), rows.start, rows.step,
            **head_width(q), SCALE=scale * LOG2_E, SPAN=64, SIZED=size is not None,
            ROWS=max(16, triton.next_power_of_2(len(rows) + with_first)), FIRST=with_first,
            num_warps=4, num_stages=3,
        )  # fmt: skip
    return mean, first


@triton.jit
def _summed(
    voters, k, k_token, alive, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the logarithm of the row sums by online softmax: scale by the maximum so far."""
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, tokens, COLUMNS):
        chosen = tokens_of(k, k_token, start, tokens, COLUMNS, WIDTH, PADDED)
        logits = tl.dot(voters, tl.trans(chosen), input_precision=PRECISION) * SCALE
        column = start + tl.arange(0, COLUMNS)
        counts = column < tokens
        if MASKED:
            counts = tl.load(alive + column, mask=counts, other=0.0) > 0
        logits = tl.where(counts[None, :], logits, float("-inf"))
        larger = tl.maximum(largest, tl.max(logits, 1))
        # Before the first living token there is nothing to scale, and −inf − (−inf) is NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp2(largest - base) + tl.sum(exp2(logits - base[:, None]), 1)
        largest = larger
    return largest + tl.log2(total)


@kernel
def _log_sums(
    q, k, out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    graph, first = portion(tokens, ROWS)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    voters = tokens_of(q, q_token, first, tokens, ROWS, WIDTH, PADDED)
    total = _summed(voters, k, k_token, k, tokens, WIDTH, PADDED, PRECISION, SCALE, ROWS, COLUMNS,
                    False)  # fmt: skip
    token = first + tl.arange(0, ROWS)
    tl.store(out + graph * tokens + token, total, mask=token < tokens)


@kernel
def _log_sums_without(
    q, k, sums, dropped, alive, out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, heads, tokens, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    graph, first = portion(tokens, ROWS)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    sums += graph * tokens
    out += graph * tokens
    token = first + tl.arange(0, ROWS)
    voters = tokens_of(q, q_token, first, tokens, ROWS, WIDTH, PADDED)
    total = tl.load(sums + token, mask=token < tokens, other=0.0)
    place = tl.arange(0, PADDED)
    gone = tl.zeros([ROWS], tl.float32)
    for start in range(0, count, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        which = tl.load(dropped + batch * count + column, mask=column < count, other=0)
        inside = (column < count)[:, None] & (place < WIDTH)[None, :]
        chosen = tl.load(k + which[:, None] * k_token + place[None, :], mask=inside, other=0.0)
        logits = tl.dot(voters, tl.trans(chosen), input_precision=PRECISION) * SCALE
        share = exp2(logits - total[:, None])
        gone += tl.sum(tl.where((column < count)[None, :], share, 0.0), 1)
    left = tl.where(token < tokens, 1 - gone, 1.0)
    if tl.min(left, 0) < 0.0625:
        total = _summed(voters, k, k_token, alive + batch * tokens, tokens, WIDTH, PADDED,
                        PRECISION, SCALE, ROWS, 64, True)  # fmt: skip
    else:
        total += tl.log2(left)
    tl.store(out + token, total, mask=token < tokens)


@kernel
def _row(
    q, k, sums, out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, heads, tokens, token,
    SCALE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    graph, first = portion(tokens, ROWS)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head + token * q_token
    k += batch * k_batch + head * k_head
    sums += graph * tokens
    chosen = tokens_of(k, k_token, first, tokens, ROWS, WIDTH, PADDED).to(tl.float32)
    place = tl.arange(0, PADDED)
    voter = tl.load(q + place, mask=place < WIDTH, other=0.0).to(tl.float32)
    logits = tl.sum(chosen * voter[None, :], 1) * SCALE
    paid = exp2(logits - tl.load(sums + token))
    other = first + tl.arange(0, ROWS)
    tl.store(out + graph * tokens + other, paid, mask=other < tokens)


@kernel
def _columns(
    q, k, sums, size, received, first,
    q_batch, q_head, q_token, k_batch, k_head, k_token, heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, SPAN: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """The tile is transposed, as in `voting._round`: keys in its rows, queries in its columns."""
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
        # Beyond the last token there are no votes.
        total = tl.load(sums + start + voter, mask=start + voter < tokens, other=float("inf"))
        logits = tl.dot(chosen, tl.trans(voters), input_precision=PRECISION) * SCALE
        paid = exp2(logits - total[None, :])
        votes += tl.sum(tl.reshape(paid, [ROWS, SPAN // 8, 8]), 1)  # within threads
        if start == 0:
            of_first = tl.sum(tl.where((voter == 0)[None, :], paid, 0.0), 1)
    column_sum = tl.sum(votes, 1)
    token = begin + tl.arange(0, ROWS)
    if SIZED:
        mass = tl.load(size + batch * tokens + token, mask=token < tokens, other=0.0)
        column_sum, of_first = column_sum * mass, of_first * mass
    tl.store(received + graph * tokens + token, column_sum, mask=token < tokens)
    tl.store(first + graph * tokens + token, of_first, mask=token < tokens)


@kernel
def _sampled(
    q, k, size, mean, first,
    q_batch, q_head, q_token, k_batch, k_head, k_token, heads, tokens, count, first_place, step,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    SPAN: tl.constexpr, SIZED: tl.constexpr, ROWS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Compute one head: all queries at once, keys tile by tile. With FIRST, token 0 is in row 0."""
    graph = tl.program_id(0).to(tl.int64)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    size += batch * tokens
    row = tl.arange(0, ROWS) - FIRST
    token = tl.where(row < 0, 0, first_place + row * step)
    place = tl.arange(0, PADDED)
    inside = (row < count)[:, None] & (place < WIDTH)[None, :]
    voters = tl.load(q + token[:, None] * q_token + place[None, :], mask=inside, other=0.0)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, tokens, SPAN):
        logits, mass = _tile(voters, k, k_token, size, start, tokens, WIDTH, PADDED, PRECISION,
                             SCALE, SPAN, SIZED)  # fmt: skip
        larger = tl.maximum(largest, tl.max(logits, 1))
        paid = exp2(logits - larger[:, None]) * mass[None, :]
        total = total * tl.exp2(largest - larger) + tl.sum(paid, 1)
        largest = larger
    asks = (row >= 0) & (row < count)
    for start in range(0, tokens, SPAN):
        logits, mass = _tile(voters, k, k_token, size, start, tokens, WIDTH, PADDED, PRECISION,
                             SCALE, SPAN, SIZED)  # fmt: skip
        paid = exp2(logits - largest[:, None]) * mass[None, :] / total[:, None]
        column = start + tl.arange(0, SPAN)
        of_all = tl.sum(tl.where(asks[:, None], paid, 0.0), 0) / count
        tl.store(mean + graph * tokens + column, of_all, mask=column < tokens)
        if FIRST:
            of_first = tl.sum(tl.where((row < 0)[:, None], paid, 0.0), 0)
            tl.store(first + graph * tokens + column, of_first, mask=column < tokens)


@triton.jit
def _tile(
    voters, k, k_token, size, start, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    SPAN: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """Return the base-2 logits of some tokens, −inf beyond the last, and their sizes."""
    chosen = tokens_of(k, k_token, start, tokens, SPAN, WIDTH, PADDED)
    logits = tl.dot(voters, tl.trans(chosen), input_precision=PRECISION) * SCALE
    column = start + tl.arange(0, SPAN)
    mass = tl.full([SPAN], 1.0, tl.float32)
    if SIZED:
        mass = tl.load(size + column, mask=column < tokens, other=0.0)
    return tl.where((column < tokens)[None, :], logits, float("-inf")), mass
