"""Fold every second token into one of the others: choose the pairs, and merge them.

One program decides for an image; a merge is a few gathers. Nothing is added atomically, so equal
tokens always give equal sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float, Int
from ..similarity import Folding
from .ranking import _key
from .tiles import kernel, launching, portion

#: the most tokens of which all pairs are one tile
ONE_TILE = 256
#: up to so many images leave most of a GPU idle: each gets more warps
FEW = 128


def fold(
    features: Float[Tensor, "batch tokens width"],
    count: int,
    weight: Float[Tensor, "batch patches"] | None,
    of_partner: float,
    first: int,
    prefix: int = 0,
) -> Folding:
    """See `Scorer.fold`; for images of up to `ONE_TILE` patch tokens."""
    batch, tokens, width = features.shape
    patches = tokens - prefix
    features = features if features.stride(-1) == 1 else features.contiguous()
    weight = None if weight is None else weight.float().contiguous()
    kept = patches - count
    keep = features.new_empty((batch, kept), dtype=torch.int64)
    gone = features.new_empty((3, batch, count), dtype=torch.int64)
    # Of all tokens, so that it compiles into one pass with the norm that reads them next.
    lengths = torch.linalg.vector_norm(features, dim=-1, dtype=torch.float32)
    half = features.dtype != torch.float32
    side = 64 if patches <= 128 else 128
    with launching(features):
        _fold[(batch,)](
            features, lengths, lengths if weight is None else weight, keep, gone,
            *features.stride()[:2], prefix, patches, width, count, gone.stride(0), first,
            SIDE=side, DEPTH=64 if half else 32, PRECISION="tf32" if half else "tf32x3",
            WEIGHED=weight is not None, OF_PARTNER=of_partner,
            num_warps=4 if batch > FEW else 8, num_stages=3,
        )  # fmt: skip
    return Folding(keep, gone[0], gone[1], gone[2])


def split(
    gain: Float[Tensor, "batch group_a"],
    choice: Int[Tensor, "batch group_a"],
    count: int,
    first: int,
    patches: int,
) -> Folding:
    """Fold the `count` tokens of the largest gain, each into its choice; see `Scorer.fold`."""
    batch, group_a = gain.shape
    keep = choice.new_empty((batch, patches - count))
    gone = choice.new_empty((3, batch, count))
    with launching(gain):
        _split[(batch,)](
            gain, choice, keep, gone, patches, group_a, count, batch * count, first,
            SIDE=triton.next_power_of_2(patches - patches // 2), SPAN=16, num_warps=8,
        )  # fmt: skip
    return Folding(keep, gone[0], gone[1], gone[2])


def merge(
    x: Float[Tensor, "batch tokens width"],
    size: Float[Tensor, "batch tokens"] | None,
    keep: Int[Tensor, "batch kept"],
    gone: Int[Tensor, "batch gone"],
    into: Int[Tensor, "batch gone"],
) -> tuple[Float[Tensor, "batch kept width"], Float[Tensor, "batch kept"]]:
    """See `Scorer.merge`."""
    batch, tokens, width = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    keep, gone, into = keep.contiguous(), gone.contiguous(), into.contiguous()
    size = size if size is None else size.contiguous()
    kept = keep.shape[1]
    out = x.new_empty((batch, kept, width))
    total = x.new_empty((batch, kept), dtype=torch.float32)
    padded = triton.next_power_of_2(width)
    rows = max(1, min(16, 8192 // padded))
    with launching(x):
        _merge[(batch * triton.cdiv(kept, rows),)](
            x, x if size is None else size, keep, gone, into, out, total,
            *x.stride()[:2], tokens, width, kept, gone.shape[1],
            ROWS=rows, SPAN=32, PADDED=padded, SIZED=size is not None, num_warps=4,
        )  # fmt: skip
    return out, total


@kernel
def _fold(
    features, lengths, weight, keep, gone,
    stride_batch, stride_token, prefix, tokens, width, count, votes_stride, first_place,
    SIDE: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr, WEIGHED: tl.constexpr,
    OF_PARTNER: tl.constexpr,
):  # fmt: skip
    """Rows are the tokens that may be folded, columns the others."""
    image = tl.program_id(0).to(tl.int64)
    features += image * stride_batch + prefix * stride_token
    lengths += image * (prefix + tokens) + prefix
    place = tl.arange(0, SIDE)
    candidate, other = 2 * place + first_place, 2 * place + 1 - first_place
    goes, stays = candidate < tokens, other < tokens
    row, column = tl.minimum(candidate, tokens - 1), tl.minimum(other, tokens - 1)
    depth = tl.arange(0, DEPTH)
    length_a = tl.maximum(tl.load(lengths + row), 1e-12)
    length_b = tl.maximum(tl.load(lengths + column), 1e-12)
    product = tl.zeros([SIDE, SIDE], tl.float32)
    for begin in range(0, width, DEPTH):
        inside = (begin + depth < width)[None, :]
        a = tl.load(features + row[:, None] * stride_token + begin + depth[None, :],
                    mask=inside, other=0.0)  # fmt: skip
        b = tl.load(features + column[:, None] * stride_token + begin + depth[None, :],
                    mask=inside, other=0.0)  # fmt: skip
        product = tl.dot(a, tl.trans(b), product, input_precision=PRECISION)
    likeness = product / length_a[:, None] / length_b[None, :]
    if WEIGHED:
        weight += image * tokens
        cost = tl.load(weight + row)[:, None]
        if OF_PARTNER != 0:
            cost = cost + OF_PARTNER * tl.load(weight + column)[None, :]
        likeness = (likeness - 1) * cost
    likeness = tl.where(stays[None, :], likeness, float("-inf"))
    gain, choice = tl.max(likeness, 1, return_indices=True)
    rank = _above(gain, goes, place)
    _hand_out(keep + image * (tokens - count), gone + image * count, votes_stride, choice, rank,
              goes, stays, place, count, first_place)  # fmt: skip


@kernel
def _split(
    gain, choice, keep, gone, tokens, group_a, count, votes_stride, first_place,
    SIDE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Choose like `_fold` for images of more tokens, from gains that are known."""
    image = tl.program_id(0).to(tl.int64)
    gain += image * group_a
    place = tl.arange(0, SIDE)
    goes, stays = place < group_a, 2 * place + 1 - first_place < tokens
    key = _key(tl.load(gain + place, mask=goes, other=0.0))
    above = tl.zeros([SIDE, SPAN], tl.int32)
    for start in range(0, group_a, SPAN):
        column = start + tl.arange(0, SPAN)
        other = _key(tl.load(gain + column, mask=column < group_a, other=0.0))
        more = other[None, :] > key[:, None]
        same = (other[None, :] == key[:, None]) & (column[None, :] < place[:, None])
        above += ((more | same) & (column < group_a)[None, :]).to(tl.int32)
    into = tl.load(choice + image * group_a + place, mask=goes, other=0)
    _hand_out(keep + image * (tokens - count), gone + image * count, votes_stride, into,
              tl.sum(above, 1), goes, stays, place, count, first_place)  # fmt: skip


@triton.jit
def _hand_out(keep, gone, votes_stride, choice, rank, goes, stays, place, count, first_place):
    """Store what stays, what goes and into which: first the rows that stay, in their order,
    then the columns."""
    candidate, other = 2 * place + first_place, 2 * place + 1 - first_place
    leaves = goes & (rank < count)
    remains = (goes & (rank >= count)).to(tl.int32)
    position = tl.cumsum(remains, 0) - remains
    staying = tl.sum(remains, 0)
    tl.store(keep + position, candidate.to(tl.int64), mask=remains > 0)
    tl.store(keep + staying + place, other.to(tl.int64), mask=stays)
    tl.store(gone + rank, candidate.to(tl.int64), mask=leaves)
    tl.store(gone + votes_stride + rank, (2 * choice + 1 - first_place).to(tl.int64), mask=leaves)
    tl.store(gone + 2 * votes_stride + rank, (choice + staying).to(tl.int64), mask=leaves)


@triton.jit
def _above(gain, goes, place):
    """Return the rank of each token; ties keep their order."""
    key = _key(gain)
    more = key[None, :] > key[:, None]
    same = (key[None, :] == key[:, None]) & (place[None, :] < place[:, None])
    return tl.sum(((more | same) & goes[None, :]).to(tl.int32), 1)


@kernel
def _merge(
    x, size, keep, gone, into, out, total,
    stride_batch, stride_token, tokens, width, kept, count,
    ROWS: tl.constexpr, SPAN: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """Merge into some of the kept tokens of one image, all channels at once. Few take in more than
    one or two: load the first one of all rows together, then the second, and so on."""
    image, start = portion(kept, ROWS)
    x += image * stride_batch
    size += image * tokens
    gone += image * count
    into += image * count
    row = start + tl.arange(0, ROWS)
    token = tl.load(keep + image * kept + row, mask=row < kept, other=0)
    place = tl.arange(0, PADDED)
    channel = (place < width)[None, :]
    grown = tl.full([ROWS], 1.0, tl.float32)
    if SIZED:
        grown = tl.load(size + token)
    mixed = tl.load(x + token[:, None] * stride_token + place[None, :], mask=channel, other=0.0)
    mixed = mixed.to(tl.float32) * grown[:, None]
    for begin in range(0, count, SPAN):
        entry = begin + tl.arange(0, SPAN)
        target = tl.load(into + entry, mask=entry < count, other=-1)
        which = tl.load(gone + entry, mask=entry < count, other=0)
        comes = (target[None, :] == row[:, None]).to(tl.int32)
        turn = tl.cumsum(comes, 1) * comes
        most = tl.max(tl.max(turn, 1), 0)
        for number in range(1, most + 1):
            now = turn == number
            source = tl.sum(tl.where(now, which[None, :], 0), 1)
            mass = tl.sum(now.to(tl.float32), 1)
            if SIZED:
                mass *= tl.load(size + source)
            some = tl.load(x + source[:, None] * stride_token + place[None, :],
                           mask=channel & (mass > 0)[:, None], other=0.0)  # fmt: skip
            mixed += some.to(tl.float32) * mass[:, None]
            grown += mass
    mixed = mixed / grown[:, None]
    tl.store(out + (image * kept + row)[:, None] * width + place[None, :],
             mixed.to(out.dtype.element_ty), mask=(row < kept)[:, None] & channel)  # fmt: skip
    tl.store(total + image * kept + row, grown, mask=row < kept)
