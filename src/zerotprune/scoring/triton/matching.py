"""Find the most similar partner of each token by cosine, without a table of similarities."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float, Int
from .tiles import kernel, launching, portion

#: with more tokens in B, the lengths of all vectors are computed once, ahead
_FEW = 128


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
    ahead = count_b > _FEW
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
