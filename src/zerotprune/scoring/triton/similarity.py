"""Similar tokens: find partners by cosine, fold every second token into one of the others, merge.

There is never a table of similarities in memory. One program decides on the folds of an image.
Nothing is added atomically, so equal tokens always give equal sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float, Int
from ..scorer import SHORTEST
from ..similarity import Folding
from .ranking import _key
from .tiles import kernel, launching, portion

#: with more tokens in B, the lengths of all vectors are computed once, ahead
ALL_AHEAD = 128
#: the most tokens of which all pairs are one tile
ONE_TILE = 256
#: up to so many images leave most of a GPU idle: each gets more warps
FEW = 128


def nearest(
    features: Float[Tensor, "batch patches width"],
    group_a: Int[Tensor, "batch group_a"],
    group_b: Int[Tensor, "batch group_b"],
    weight: Float[Tensor, "batch patches"] | None = None,
    of_partner: float = 0.0,
) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
    """Return for each token of A its largest cosine with a token of B, and the index of that token
    in B; with `weight`, the lowest cost of folding, negated, instead of the cosine: see
    `Scorer.fold`."""
    batch, tokens, width = features.shape
    features, group_a, group_b = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (features, group_a, group_b)
    )
    count_a, count_b = group_a.shape[1], group_b.shape[1]
    best = features.new_empty((batch, count_a), dtype=torch.float32)
    choice = group_a.new_empty((batch, count_a))
    half = features.dtype != torch.float32
    side = 128 if half and count_a > 64 else 64
    depth = 64 if half else 32
    ahead = count_b > ALL_AHEAD
    weights = features if weight is None else weight.float().contiguous()
    with launching(features):
        scales = _launch_scales(features, depth) if ahead else features
        _nearest[(batch * triton.cdiv(count_a, side),)](
            features, scales, weights, group_a, group_b, best, choice,
            *features.stride()[:2], group_a.stride(0), group_b.stride(0),
            tokens, count_a, count_b, width,
            ROWS=side, COLUMNS=side, DEPTH=depth, PRECISION="tf32" if half else "tf32x3",
            AHEAD=ahead, WEIGHED=weight is not None, OF_PARTNER=of_partner, num_warps=4,
            num_stages=2 if side == 128 and not ahead else 3,
        )  # fmt: skip
    return best, choice


def _launch_scales(features: Tensor, depth: int) -> Tensor:
    batch, tokens, width = features.shape
    scales = features.new_empty((batch, tokens), dtype=torch.float32)
    rows = 16
    _scales[(batch * triton.cdiv(tokens, rows),)](
        features, scales, *features.stride()[:2], tokens, width, ROWS=rows, DEPTH=depth, num_warps=4
    )
    return scales


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


def merge(
    x: Float[Tensor, "batch tokens width"],
    size: Float[Tensor, "batch tokens"] | None,
    keep: Int[Tensor, "batch kept"],
    gone: Int[Tensor, "batch gone"],
    into: Int[Tensor, "batch gone"],
    keeps_length: bool = False,
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
    rows = max(1, 2048 // padded)
    first, following = _guests(into, kept)
    with launching(x):
        _merge[(batch * triton.cdiv(kept, rows),)](
            x, x if size is None else size, keep, gone, first, following, out, total,
            *x.stride()[:2], tokens, width, kept, gone.shape[1],
            ROWS=rows, PADDED=padded, SIZED=size is not None, KEEPS_LENGTH=keeps_length,
            SHORTEST=SHORTEST, num_warps=4,
        )  # fmt: skip
    return out, total


def _guests(
    into: Int[Tensor, "batch gone"], kept: int
) -> tuple[Int[Tensor, "batch kept"], Int[Tensor, "batch gone"]]:
    """Return for each kept token the first of `into` that is merged into it, and for each of these
    the following one; their number if there is none. Compiled, each is one small kernel."""
    count = into.shape[1]
    guest = torch.arange(count, device=into.device)
    token = torch.arange(kept, device=into.device).unsqueeze(1)
    first = torch.where(into.unsqueeze(1) == token, guest, count)
    same = (into.unsqueeze(1) == into.unsqueeze(2)) & (guest > guest.unsqueeze(1))
    return first.amin(dim=-1), torch.where(same, guest, count).amin(dim=-1)


@kernel
def _nearest(
    features, scales, weight, group_a, group_b, best, choice,
    stride_batch, stride_token, stride_a, stride_b, tokens, count_a, count_b, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    AHEAD: tl.constexpr, WEIGHED: tl.constexpr, OF_PARTNER: tl.constexpr,
):  # fmt: skip
    image, first = portion(count_a, ROWS)
    features += image * stride_batch
    row = first + tl.arange(0, ROWS)
    token_a = tl.load(group_a + image * stride_a + row, mask=row < count_a, other=0)
    depth = tl.arange(0, DEPTH)
    if AHEAD:
        scale_a = tl.load(scales + image * tokens + token_a)
    else:
        scale_a = _scale(features, token_a, stride_token, width, ROWS, DEPTH)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    place = tl.zeros([ROWS], tl.int32)
    for start in range(0, count_b, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        token_b = tl.load(group_b + image * stride_b + column, mask=column < count_b, other=0)
        if AHEAD:
            scale_b = tl.load(scales + image * tokens + token_b)
        else:
            scale_b = _scale(features, token_b, stride_token, width, COLUMNS, DEPTH)
        product = tl.zeros([ROWS, COLUMNS], tl.float32)
        for begin in range(0, width, DEPTH):
            inside = (begin + depth < width)[None, :]
            a = tl.load(features + token_a[:, None] * stride_token + begin + depth[None, :],
                        mask=inside, other=0.0)  # fmt: skip
            b = tl.load(features + token_b[:, None] * stride_token + begin + depth[None, :],
                        mask=inside, other=0.0)  # fmt: skip
            product = tl.dot(a, tl.trans(b), product, input_precision=PRECISION)
        likeness = product * scale_a[:, None] * scale_b[None, :]
        if WEIGHED:
            cost = tl.load(weight + image * tokens + token_a)[:, None]
            cost += OF_PARTNER * tl.load(weight + image * tokens + token_b)[None, :]
            likeness = (likeness - 1) * cost
        likeness = tl.where((column < count_b)[None, :], likeness, float("-inf"))
        highest, where = tl.max(likeness, 1, return_indices=True)
        better = highest > top
        place = tl.where(better, start + where, place)
        top = tl.where(better, highest, top)
    tl.store(best + image * count_a + row, top, mask=row < count_a)
    tl.store(choice + image * count_a + row, place.to(tl.int64), mask=row < count_a)


@kernel
def _scales(
    features, out, stride_batch, stride_token, tokens, width,
    ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    image, first = portion(tokens, ROWS)
    token = first + tl.arange(0, ROWS)
    known = tl.minimum(token, tokens - 1)
    scale = _scale(features + image * stride_batch, known, stride_token, width, ROWS, DEPTH)
    tl.store(out + image * tokens + token, scale, mask=token < tokens)


@triton.jit
def _scale(features, which, stride_token, width, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """Return 1 / length of some vectors, clamped as in `F.normalize`.

    This needs a pass of its own: if the operands of a matrix product had a second use, Triton (3.6
    to 3.9) overwrote them with the next ones before the product had read them.
    """
    depth = tl.arange(0, DEPTH)
    squares = tl.zeros([BLOCK, DEPTH], tl.float32)
    for begin in range(0, width, DEPTH):
        some = tl.load(features + which[:, None] * stride_token + begin + depth[None, :],
                       mask=(begin + depth < width)[None, :], other=0.0)  # fmt: skip
        squares += some.to(tl.float32) * some.to(tl.float32)
    return 1 / tl.maximum(tl.sqrt(tl.sum(squares, 1)), 1e-12)


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
    x, size, keep, gone, first, following, out, total,
    stride_batch, stride_token, tokens, width, kept, count,
    ROWS: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr, KEEPS_LENGTH: tl.constexpr,
    SHORTEST: tl.constexpr,
):  # fmt: skip
    """Merge into some of the kept tokens of one image, all channels at once: the first guest of all
    of them together, then the second, and so on. Few have more than one or two."""
    image, start = portion(kept, ROWS)
    x += image * stride_batch
    size += image * tokens
    gone += image * count
    following += image * count
    row = start + tl.arange(0, ROWS)
    inside = row < kept
    token = tl.load(keep + image * kept + row, mask=inside, other=0)
    place = tl.arange(0, PADDED)
    channel = (place < width)[None, :]
    grown = tl.full([ROWS], 1.0, tl.float32)
    if SIZED:
        grown = tl.load(size + token)
    mixed = tl.load(x + token[:, None] * stride_token + place[None, :], mask=channel, other=0.0)
    mixed = mixed.to(tl.float32) * grown[:, None]
    length = grown
    if KEEPS_LENGTH:
        length = tl.sqrt(tl.sum(mixed * mixed, 1))
    guest = tl.load(first + image * kept + row, mask=inside, other=count)
    while tl.min(guest, 0) < count:
        comes = guest < count
        source = tl.load(gone + guest, mask=comes, other=0)
        mass = comes.to(tl.float32)
        if SIZED:
            mass *= tl.load(size + source)
        some = tl.load(x + source[:, None] * stride_token + place[None, :],
                       mask=channel & comes[:, None], other=0.0)  # fmt: skip
        some = some.to(tl.float32) * mass[:, None]
        mixed += some
        grown += mass
        if KEEPS_LENGTH:
            length += tl.sqrt(tl.sum(some * some, 1))
        guest = tl.load(following + guest, mask=comes, other=count)
    divisor = grown
    if KEEPS_LENGTH:
        shortened = tl.sqrt(tl.sum(mixed * mixed, 1)) / tl.maximum(length, SHORTEST)
        divisor *= tl.maximum(shortened, SHORTEST)
    mixed = mixed / divisor[:, None]
    tl.store(out + (image * kept + row)[:, None] * width + place[None, :],
             mixed.to(out.dtype.element_ty), mask=inside[:, None] & channel)  # fmt: skip
    tl.store(total + image * kept + row, grown, mask=inside)
