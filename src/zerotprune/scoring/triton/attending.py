"""Attention that knows the sizes of tokens, and hands out what they receive on the way."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from .tiles import LOG2_E, exp2, head_width, kernel, launching, portion, tokens_of

#: Up to so many tokens a few rows of the graph, whole, fit into the registers of a program.
WHOLE_ROWS = 256
_ROWS = 64
#: So many programs keep a large GPU busy; where there are fewer, each takes fewer rows.
_BUSY = 264


class Columns(NamedTuple):
    """What is left of an attention graph that was never written down."""

    sums: Float[Tensor, "batch heads parts tokens"]  # of the columns, over some rows each
    first: Float[Tensor, "batch heads tokens"]  # the row of token 0
    alive: None = None

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        if token != 0:
            raise ValueError(f"only the row of token 0 was kept, not that of {token}")
        return self.first

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        return self.sums.sum(dim=2) / self.sums.shape[-1]


def attend(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    v: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"] | None,
    *,
    columns: bool = False,
) -> tuple[Float[Tensor, "batch heads tokens width"], Columns | None]:
    """Attention in proportion to the sizes, for images of up to `WHOLE_ROWS` tokens."""
    batch, heads, tokens, width = q.shape
    parts = 1 if batch * heads >= _BUSY else triton.cdiv(tokens, _ROWS)
    # In memory the heads of a token stand side by side, as what comes next wants them.
    out = q.new_empty((batch, tokens, heads, width)).transpose(1, 2)
    sums = q.new_empty((batch, heads, parts, tokens) if columns else (1,), dtype=torch.float32)
    first = q.new_empty((batch, heads, tokens) if columns else (1,), dtype=torch.float32)
    with launching(q):
        _attend[(batch * heads * parts,)](
            q, k, v, q if size is None else size, out, sums, first,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            heads, tokens, parts,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=_ROWS,
            **_spans(tokens),
            SIZED=size is not None, COLUMNS=columns, num_warps=4, num_stages=2,
        )  # fmt: skip
    return out, Columns(sums, first) if columns else None


def _spans(tokens: int) -> dict[str, int]:
    """How many tiles a row takes, and how wide they are: 64, but for the last."""
    tiles = triton.cdiv(tokens, 64)
    last = max(16, triton.next_power_of_2(tokens - 64 * (tiles - 1)))
    spans = {f"SPAN{tile}": last if tile == tiles - 1 else 64 for tile in range(4)}
    return {"TILES": tiles, **spans}


def attend_long(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    v: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"],
) -> tuple[Float[Tensor, "batch heads tokens width"], Float[Tensor, "batch heads tokens"]]:
    """The same for any number of tokens, and the logarithms, to base 2, of the row sums."""
    batch, heads, tokens, width = q.shape
    out = q.new_empty((batch, tokens, heads, width)).transpose(1, 2)
    sums = q.new_empty((batch, heads, tokens), dtype=torch.float32)
    half = q.dtype != torch.float32
    rows = 128 if half else 64
    with launching(q):
        _attend_long[(batch * heads * triton.cdiv(tokens, rows),)](
            q, k, v, size, out, sums,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], heads, tokens,
            **head_width(q), SCALE=scale * LOG2_E, ROWS=rows, SPAN=64 if half else 32,
            num_warps=4, num_stages=3 if half else 2,
        )  # fmt: skip
    return out, sums


@triton.jit
def _logits(
    voters, k, k_token, size, start, tokens,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    SPAN: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """Exponents of some voters' attention to some tokens; the size of each is one more term."""
    chosen = tokens_of(k, k_token, start, tokens, SPAN, WIDTH, PADDED)
    token = start + tl.arange(0, SPAN)
    logits = tl.dot(voters, tl.trans(chosen), input_precision=PRECISION) * SCALE
    counts = token < tokens
    if SIZED:
        mass = tl.load(size + token, mask=counts, other=0.0)
        counts = mass > 0
        logits += tl.log2(tl.where(counts, mass, 1.0))[None, :]
    return tl.where(counts[None, :], logits, float("-inf"))


@triton.jit
def _pass_on(
    paid, v, v_token, first, start, begin, tokens, asks, before,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What some tokens give to their voters, after adding up what they receive from them."""
    if COLUMNS:
        token = start + tl.arange(0, SPAN)
        before += tl.sum(tl.where(asks[:, None], paid, 0.0), 0)
        if begin == 0:
            top = (tl.arange(0, ROWS) == 0)[:, None] & (token < tokens)[None, :]
            tl.store(first + tl.zeros([ROWS, 1], tl.int32) + token[None, :], paid, mask=top)
    values = tokens_of(v, v_token, start, tokens, SPAN, WIDTH, PADDED)
    given = tl.dot(paid.to(values.dtype), values, input_precision=PRECISION)
    return given, before


@kernel
def _attend(
    q, k, v, size, out, sums, first,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    o_batch, o_head, o_token, heads, tokens, parts,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr,
    SPAN0: tl.constexpr, SPAN1: tl.constexpr, SPAN2: tl.constexpr, SPAN3: tl.constexpr,
    SIZED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some rows of one head at a time, each row whole: nothing has to be scaled back later, and
    the sums of the columns are at hand. All tiles are 64 tokens wide but the last."""
    graph = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    batch, head = graph // heads, graph % heads
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    out += batch * o_batch + head * o_head
    size += batch * tokens
    sums += (graph * parts + part) * tokens
    first += graph * tokens
    received0 = tl.zeros([SPAN0], tl.float32)
    received1 = tl.zeros([SPAN1], tl.float32)
    received2 = tl.zeros([SPAN2], tl.float32)
    received3 = tl.zeros([SPAN3], tl.float32)
    place = tl.arange(0, PADDED)
    for begin in range(part * ROWS, tokens, parts * ROWS):
        voters = tokens_of(q, q_token, begin, tokens, ROWS, WIDTH, PADDED)
        row = begin + tl.arange(0, ROWS)
        asks = row < tokens
        tile0 = _logits(voters, k, k_token, size, 0, tokens, WIDTH, PADDED, PRECISION, SCALE, SPAN0,
                        SIZED)  # fmt: skip
        largest = tl.max(tile0, 1)
        if TILES > 1:
            tile1 = _logits(voters, k, k_token, size, 64, tokens, WIDTH, PADDED, PRECISION, SCALE,
                            SPAN1, SIZED)  # fmt: skip
            largest = tl.maximum(largest, tl.max(tile1, 1))
        if TILES > 2:
            tile2 = _logits(voters, k, k_token, size, 128, tokens, WIDTH, PADDED, PRECISION, SCALE,
                            SPAN2, SIZED)  # fmt: skip
            largest = tl.maximum(largest, tl.max(tile2, 1))
        if TILES > 3:
            tile3 = _logits(voters, k, k_token, size, 192, tokens, WIDTH, PADDED, PRECISION, SCALE,
                            SPAN3, SIZED)  # fmt: skip
            largest = tl.maximum(largest, tl.max(tile3, 1))
        tile0 = exp2(tile0 - largest[:, None])
        total = tl.sum(tile0, 1)
        if TILES > 1:
            tile1 = exp2(tile1 - largest[:, None])
            total += tl.sum(tile1, 1)
        if TILES > 2:
            tile2 = exp2(tile2 - largest[:, None])
            total += tl.sum(tile2, 1)
        if TILES > 3:
            tile3 = exp2(tile3 - largest[:, None])
            total += tl.sum(tile3, 1)
        share = (1 / total)[:, None]
        mixed, received0 = _pass_on(
            tile0 * share, v, v_token, first, 0, begin, tokens, asks, received0,
            WIDTH, PADDED, PRECISION, SPAN0, ROWS, COLUMNS)  # fmt: skip
        if TILES > 1:
            given, received1 = _pass_on(
                tile1 * share, v, v_token, first, 64, begin, tokens, asks, received1,
                WIDTH, PADDED, PRECISION, SPAN1, ROWS, COLUMNS)  # fmt: skip
            mixed += given
        if TILES > 2:
            given, received2 = _pass_on(
                tile2 * share, v, v_token, first, 128, begin, tokens, asks, received2,
                WIDTH, PADDED, PRECISION, SPAN2, ROWS, COLUMNS)  # fmt: skip
            mixed += given
        if TILES > 3:
            given, received3 = _pass_on(
                tile3 * share, v, v_token, first, 192, begin, tokens, asks, received3,
                WIDTH, PADDED, PRECISION, SPAN3, ROWS, COLUMNS)  # fmt: skip
            mixed += given
        inside = asks[:, None] & (place < WIDTH)[None, :]
        tl.store(out + row[:, None] * o_token + place[None, :], mixed.to(out.dtype.element_ty),
                 mask=inside)  # fmt: skip
    if COLUMNS:
        _put(sums, received0, 0, tokens, SPAN0)
        if TILES > 1:
            _put(sums, received1, 64, tokens, SPAN1)
        if TILES > 2:
            _put(sums, received2, 128, tokens, SPAN2)
        if TILES > 3:
            _put(sums, received3, 192, tokens, SPAN3)


@triton.jit
def _put(sums, received, start, tokens, SPAN: tl.constexpr):
    token = start + tl.arange(0, SPAN)
    tl.store(sums + token, received, mask=token < tokens)


@kernel
def _attend_long(
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
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    for start in range(0, tokens, SPAN):
        logits = _logits(voters, k, k_token, size, start, tokens, WIDTH, PADDED, PRECISION, SCALE,
                         SPAN, True)  # fmt: skip
        # Token 0 is CLS or a patch, never padding: from the first tile on this is a number.
        higher = tl.maximum(largest, tl.max(logits, 1))
        paid = exp2(logits - higher[:, None])
        fall = exp2(largest - higher)
        total = total * fall + tl.sum(paid, 1)
        values = tokens_of(v, v_token, start, tokens, SPAN, WIDTH, PADDED)
        mixed = mixed * fall[:, None]
        mixed = tl.dot(paid.to(values.dtype), values, mixed, input_precision=PRECISION)
        largest = higher
    row = begin + tl.arange(0, ROWS)
    place = tl.arange(0, PADDED)
    inside = (row < tokens)[:, None] & (place < WIDTH)[None, :]
    mixed = mixed * (1 / total)[:, None]
    tl.store(out + row[:, None] * o_token + place[None, :], mixed.to(out.dtype.element_ty),
             mask=inside)  # fmt: skip
    tl.store(sums + graph * tokens + row, largest + tl.log2(total), mask=row < tokens)
