"""Votes on an attention graph that is never written to memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shapes import Float
from .tiles import LOG2_E, exp2, head_width, launching, tokens_of

#: Up to so many tokens the graph of one head fits into the registers of one multiprocessor.
ON_CHIP = 3 * 64 + 16


def vote(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    sums: Float[Tensor, "batch heads tokens"],
    start: Float[Tensor, "batch heads tokens"],
    rounds: int,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads tokens"]:
    """`rounds` times s ← Aᵀs, on the living tokens alone; the start gives nothing to the others.

    `sums` are those over the living tokens, so that the rows of A sum to 1 and the votes keep
    their sum: nothing has to be scaled back.
    """
    if rounds > 1 and q.shape[2] <= ON_CHIP and q.dtype != torch.float32:
        return _launch_on_chip(q, k, scale, sums, start, rounds, alive)
    score = start
    for _ in range(rounds):
        score = _launch_round(q, k, scale, sums, score, alive)
    return score


def _launch_round(
    q: Tensor, k: Tensor, scale: float, sums: Tensor, score: Tensor, alive: Tensor | None
) -> Tensor:  # fmt: skip
    batch, heads, tokens, _ = q.shape
    # Whole tensors, never views: of a view that is written to, torch's compiler (2.11) made copies
    # that read beyond its end.
    out = q.new_empty(q.shape[:3], dtype=torch.float32)
    rows = 128 if q.dtype != torch.float32 else 64
    with launching(q):
        _round[(batch * heads, triton.cdiv(tokens, rows))](
            q, k, sums, score, q if alive is None else alive, out,
            *q.stride()[:3], *k.stride()[:3], *score.stride()[:2], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=rows, COLUMNS=32, MASKED=alive is not None,
            num_warps=4, num_stages=3,
        )  # fmt: skip
    return out


def _launch_on_chip(
    q: Tensor, k: Tensor, scale: float, sums: Tensor, start: Tensor, rounds: int,
    alive: Tensor | None,
) -> Tensor:  # fmt: skip
    batch, heads, tokens, _ = q.shape
    # Two of them: a round reads the one and writes the other.
    out = q.new_empty((2, batch, heads, tokens), dtype=torch.float32)
    columns = max(64, triton.next_power_of_2(tokens))
    with launching(q):
        _all_rounds[(batch * heads,)](
            q, k, sums, start, q if alive is None else alive, out, out.stride(0),
            *q.stride()[:3], *k.stride()[:3], *start.stride()[:2],
            heads, tokens, rounds,
            **head_width(q), SCALE=scale * LOG2_E, COLUMNS=columns, TILES=triton.cdiv(tokens, 64),
            MASKED=alive is not None, num_warps=8 if columns == 256 else 4, num_stages=1,
        )  # fmt: skip
    return out[(rounds - 1) % 2]


@triton.jit
def _round(
    q, k, sums, score, alive, out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, score_batch, score_head,
    heads, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The votes for some tokens of one head.

    A tile holds the graph turned over: who is voted for stands in the rows, so that a sum of votes
    stays within a few threads.
    """
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    q += batch.to(tl.int64) * q_batch + head * q_head
    k += batch.to(tl.int64) * k_batch + head * k_head
    sums += tl.program_id(0).to(tl.int64) * tokens
    score += batch * score_batch + head * score_head
    first = tl.program_id(1) * ROWS
    chosen = tokens_of(k, k_token, first, tokens, ROWS, WIDTH, PADDED)
    votes = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, tokens, COLUMNS):
        voters = tokens_of(q, q_token, start, tokens, COLUMNS, WIDTH, PADDED)
        voter = start + tl.arange(0, COLUMNS)
        weight = tl.load(score + voter, mask=voter < tokens, other=0.0)
        total = tl.load(sums + voter, mask=voter < tokens, other=0.0)
        logits = tl.dot(chosen, tl.trans(voters), input_precision=PRECISION) * SCALE
        votes += exp2(logits - total[None, :]) * weight[None, :]
    out += tl.program_id(0).to(tl.int64) * tokens
    _store(tl.sum(votes, 1), out, alive + batch * tokens, first, tokens, ROWS, MASKED)


@triton.jit
def _all_rounds(
    q, k, sums, score, alive, out, other,
    q_batch, q_head, q_token, k_batch, k_head, k_token, score_batch, score_head,
    heads, tokens, rounds,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    COLUMNS: tl.constexpr, TILES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """All rounds of one head, with its whole graph held in registers, again turned over."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    q += batch.to(tl.int64) * q_batch + head * q_head
    k += batch.to(tl.int64) * k_batch + head * k_head
    sums += tl.program_id(0).to(tl.int64) * tokens
    out += tl.program_id(0).to(tl.int64) * tokens
    score += batch * score_batch + head * score_head
    alive += batch * tokens
    voter = tl.arange(0, COLUMNS)
    voters = tl.trans(tokens_of(q, q_token, 0, tokens, COLUMNS, WIDTH, PADDED))
    total = tl.load(sums + voter, mask=voter < tokens, other=float("inf"))[None, :]
    if TILES > 3:  # the few tokens beyond 3 × 64 of a picture of 14 × 14 patches
        few = tokens_of(k, k_token, 192, tokens, 16, WIDTH, PADDED)
        tile3 = exp2(tl.dot(few, voters, input_precision=PRECISION) * SCALE - total)
    chosen = tokens_of(k, k_token, 0, tokens, 64, WIDTH, PADDED)
    tile0 = exp2(tl.dot(chosen, voters, input_precision=PRECISION) * SCALE - total)
    if TILES > 1:
        chosen = tokens_of(k, k_token, 64, tokens, 64, WIDTH, PADDED)
        tile1 = exp2(tl.dot(chosen, voters, input_precision=PRECISION) * SCALE - total)
    if TILES > 2:
        chosen = tokens_of(k, k_token, 128, tokens, 64, WIDTH, PADDED)
        tile2 = exp2(tl.dot(chosen, voters, input_precision=PRECISION) * SCALE - total)
    for turn in range(rounds):
        target = out + (turn % 2) * other
        weight = tl.load(score + voter, mask=voter < tokens, other=0.0)[None, :]
        _store(tl.sum(tile0 * weight, 1), target, alive, 0, tokens, 64, MASKED)
        if TILES > 1:
            _store(tl.sum(tile1 * weight, 1), target, alive, 64, tokens, 64, MASKED)
        if TILES > 2:
            _store(tl.sum(tile2 * weight, 1), target, alive, 128, tokens, 64, MASKED)
        if TILES > 3:
            _store(tl.sum(tile3 * weight, 1), target, alive, 192, tokens, 16, MASKED)
        tl.debug_barrier()  # all votes are in before the next round reads them
        score = target


@triton.jit
def _store(votes, out, alive, first, tokens, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """The votes for some tokens; the dead get none."""
    token = first + tl.arange(0, BLOCK)
    if MASKED:
        living = tl.load(alive + token, mask=token < tokens, other=0.0)
        votes = tl.where(living > 0, votes, 0.0)
    tl.store(out + token, votes, mask=token < tokens)
