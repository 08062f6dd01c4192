"""Vote on an attention graph that is never in memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from .tiles import LOG2_E, exp2, head_width, kernel, launching, portion, tokens_of

#: the most tokens with which the graph of one head fits into the registers of a multiprocessor, and
#: the largest width with which its q and k, in half precision, fit into its shared memory
ON_CHIP = 3 * 64 + 16
WIDTH_ON_CHIP = 64


def vote(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    sums: Float[Tensor, "batch heads tokens"],
    start: Float[Tensor, "batch heads tokens"],
    rounds: int,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads tokens"]:
    """Run `rounds` times s ← Aᵀs on the living tokens; `start` must be 0 for the others.

    `sums` are over the living tokens, so the rows of A sum to 1, the votes keep their sum, and
    nothing has to be scaled back.
    """
    fits = q.shape[2] <= ON_CHIP and q.shape[3] <= WIDTH_ON_CHIP and q.dtype != torch.float32
    if rounds > 1 and fits:
        return _launch_on_chip(q, k, scale, sums, start, rounds, alive)
    score = start
    for turn in range(rounds):
        first, last = turn == 0, turn == rounds - 1
        score = _launch_round(q, k, scale, sums, score, alive, first, last)
    return score


def _launch_round(
    q: Tensor, k: Tensor, scale: float, sums: Tensor, score: Tensor, alive: Tensor | None,
    first: bool, last: bool,
) -> Tensor:  # fmt: skip
    batch, heads, tokens, _ = q.shape
    # Never write to a view: torch 2.11 compiled copies of it that read beyond its end.
    out = q.new_empty(q.shape[:3], dtype=torch.float32)
    half = q.dtype != torch.float32
    rows = 128 if half else 64
    columns = 64 if half and tokens > 600 else 32  # fastest on an H200, and fits other GPUs
    with launching(q):
        _round[(batch * heads * triton.cdiv(tokens, rows),)](
            q, k, sums, score, q if alive is None else alive, out,
            *q.stride()[:3], *k.stride()[:3], *score.stride()[:2], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=rows, COLUMNS=columns,
            MASKED=alive is not None, FIRST=first, LAST=last, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out


def _launch_on_chip(
    q: Tensor, k: Tensor, scale: float, sums: Tensor, start: Tensor, rounds: int,
    alive: Tensor | None,
) -> Tensor:  # fmt: skip
    batch, heads, tokens, _ = q.shape
    columns = max(64, triton.next_power_of_2(tokens))
    parts = 2 if columns == 256 else 1
    # Double buffer: a round writes one while the other is still being read.
    votes = q.new_empty((2, batch * heads, parts, columns), dtype=torch.float32)
    out = q.new_empty((batch, heads, tokens), dtype=torch.float32)
    with launching(q):
        _all_rounds[(batch * heads,)](
            q, k, sums, start, q if alive is None else alive, votes, out, votes.stride(0),
            *q.stride()[:3], *k.stride()[:3], *start.stride()[:2],
            heads, tokens, rounds,
            **head_width(q), SCALE=scale * LOG2_E, COLUMNS=columns, TILES=triton.cdiv(tokens, 64),
            PARTS=parts, MASKED=alive is not None, num_warps=4 * parts, num_stages=1,
        )  # fmt: skip
    return out


@kernel
def _round(
    q, k, sums, score, alive, out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, score_batch, score_head,
    heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Count the votes for some tokens of one head.

    The tile is transposed, keys in its rows, so that a sum of votes stays within a few threads.
    Each round passes on what to subtract from the exponents of a voter: the logarithm of its row
    sum minus that of its votes.
    """
    graph, first = portion(tokens, ROWS)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    sums += graph * tokens
    score += batch * score_batch + head * score_head
    chosen = tokens_of(k, k_token, first, tokens, ROWS, WIDTH, PADDED)
    votes = tl.zeros([ROWS, 8], tl.float32)
    next_lowering, next_weight = _of_voters(sums, score, 0, tokens, COLUMNS, FIRST)
    for start in range(0, tokens, COLUMNS):
        voters = tokens_of(q, q_token, start, tokens, COLUMNS, WIDTH, PADDED)
        lowering, weight = next_lowering, next_weight
        next_lowering, next_weight = _of_voters(
            sums, score, start + COLUMNS, tokens, COLUMNS, FIRST
        )
        logits = tl.dot(chosen, tl.trans(voters), input_precision=PRECISION) * SCALE
        paid = exp2(logits - lowering[None, :])
        if FIRST:
            paid *= weight[None, :]
        votes += tl.sum(tl.reshape(paid, [ROWS, COLUMNS // 8, 8]), 1)  # within threads
    received = tl.sum(votes, 1)
    token = first + tl.arange(0, ROWS)
    if MASKED:
        living = tl.load(alive + batch * tokens + token, mask=token < tokens, other=0.0)
        received = tl.where(living > 0, received, 0.0)
    if not LAST:
        total = tl.load(sums + token, mask=token < tokens, other=0.0)
        no_votes = received == 0
        some = tl.where(no_votes, 1.0, received)
        received = tl.where(no_votes, float("inf"), total - tl.log2(some))
    tl.store(out + graph * tokens + token, received, mask=token < tokens)


@triton.jit
def _of_voters(sums, score, first, tokens, COLUMNS: tl.constexpr, FIRST: tl.constexpr):
    """Load what to subtract from the exponents of voters, and in the first round their weights.

    Later rounds have the weight in the exponent. Beyond the last token there are no votes.
    """
    voter = first + tl.arange(0, COLUMNS)
    if FIRST:
        lowering = tl.load(sums + voter, mask=voter < tokens, other=0.0)
        weight = tl.load(score + voter, mask=voter < tokens, other=0.0)
    else:
        lowering = tl.load(score + voter, mask=voter < tokens, other=float("inf"))
        weight = lowering
    return lowering, weight


@kernel
def _all_rounds(
    q, k, sums, score, alive, votes, out, votes_stride,
    q_batch, q_head, q_token, k_batch, k_head, k_token, score_batch, score_head,
    heads, tokens, rounds,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    COLUMNS: tl.constexpr, TILES: tl.constexpr, PARTS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Run all rounds of one head with its whole graph in registers, transposed as in `_round`.

    Votes pass through memory, which all threads see. To synchronize as seldom as possible, each
    half of the voters writes its own sum, and readers add the two.
    """
    graph = tl.program_id(0).to(tl.int64)
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    votes += graph * (PARTS * COLUMNS)
    voter = tl.arange(0, COLUMNS)
    voters = tl.trans(tokens_of(q, q_token, 0, tokens, COLUMNS, WIDTH, PADDED))
    # Load everything at once: with few programs on a multiprocessor nothing hides the latency.
    chosen0 = tokens_of(k, k_token, 0, tokens, 64, WIDTH, PADDED)
    if TILES > 1:
        chosen1 = tokens_of(k, k_token, 64, tokens, 64, WIDTH, PADDED)
    if TILES > 2:
        chosen2 = tokens_of(k, k_token, 128, tokens, 64, WIDTH, PADDED)
    if TILES > 3:  # the few tokens beyond 3 × 64 of an image of 14 × 14 patches
        chosen3 = tokens_of(k, k_token, 192, tokens, 16, WIDTH, PADDED)
    living = voter < tokens
    total = tl.load(sums + graph * tokens + voter, mask=living, other=float("inf"))[None, :]
    if MASKED:
        living = tl.load(alive + batch * tokens + voter, mask=living, other=0.0) > 0
    score += batch * score_batch + head * score_head
    weight = tl.load(score + voter, mask=living, other=0.0)
    if TILES > 3:
        tile3 = exp2(tl.dot(chosen3, voters, input_precision=PRECISION) * SCALE - total)
    tile0 = exp2(tl.dot(chosen0, voters, input_precision=PRECISION) * SCALE - total)
    if TILES > 1:
        tile1 = exp2(tl.dot(chosen1, voters, input_precision=PRECISION) * SCALE - total)
    if TILES > 2:
        tile2 = exp2(tl.dot(chosen2, voters, input_precision=PRECISION) * SCALE - total)
    for turn in range(rounds):
        target = votes + (turn % 2) * votes_stride
        row = weight[None, :]
        _put(tile0 * row, target, 0, PARTS)
        if TILES > 1:
            _put(tile1 * row, target, 64, PARTS)
        if TILES > 2:
            _put(tile2 * row, target, 128, PARTS)
        if TILES > 3:
            _put(tile3 * row, target, 192, PARTS)
        tl.debug_barrier()  # all votes are written before the next round reads them
        weight = tl.load(target + voter, mask=living, other=0.0)
        if PARTS > 1:
            weight += tl.load(target + COLUMNS + voter, mask=living, other=0.0)
    tl.store(out + graph * tokens + voter, weight, mask=voter < tokens)


@triton.jit
def _put(paid, target, first, PARTS: tl.constexpr):
    """Store the votes for the tokens of one tile, one sum for each part of the voters."""
    rows: tl.constexpr = paid.shape[0]
    columns: tl.constexpr = paid.shape[1]
    place = tl.arange(0, PARTS)[None, :] * columns + first + tl.arange(0, rows)[:, None]
    tl.store(target + place, tl.sum(tl.reshape(paid, [rows, PARTS, columns // PARTS]), 2))
