"""Tiles of an attention graph: what all kernels that make them from q and k have in common.

A tile costs one matrix product and one exponential for each entry, which a GPU does faster than
it would read the entries from memory. Exponents and logarithms are to base 2, as the hardware's.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = math.log2(math.e)


#: A kernel of whole grids. These numbers change from stage to stage and from schedule to schedule,
#: and so does where a part of a tensor begins: code made for some of them in particular (1,
#: multiples of 16) would be made again and again.
kernel = partial(
    triton.jit,
    do_not_specialize=(
        "tokens", "count", "count_a", "count_b", "rounds", "votes_stride",
        "score_batch", "score_head", "stride_a", "stride_b", "group_a", "group_b",
        "kept", "parts", "gone", "into", "first_place", "step", "prefix",
    ),
)  # fmt: skip


def launching(x: Tensor) -> AbstractContextManager[object]:
    """Launch on the device of the tensor, whichever is the current one.

    Compiled code sees to that itself, and a CPU (the interpreter) has but one.
    """
    if torch.compiler.is_compiling() or x.device.type != "cuda":
        return nullcontext()
    return torch.cuda.device(x.device)


def head_width(q: Tensor) -> dict[str, Any]:
    """How the vectors of one head enter a matrix product."""
    width = q.shape[-1]
    return {
        "WIDTH": width,
        "PADDED": max(16, triton.next_power_of_2(width)),
        # Three products of tf32 make one of float32; those of half precision are exact anyway.
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
    }


@triton.jit
def portion(rows, ROWS: tl.constexpr):
    """Whose rows a program of a flat grid works on, and from which one on.

    Neighbours in the grid have the same owner, and find in the cache what all of them read of it.
    """
    blocks = tl.cdiv(rows, ROWS)
    owner = tl.program_id(0) // blocks
    return owner.to(tl.int64), (tl.program_id(0) % blocks) * ROWS


@triton.jit
def tokens_of(
    pointer, stride, first, tokens, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Some tokens' vectors of one head, zeros beyond the last."""
    token = first + tl.arange(0, BLOCK)
    place = tl.arange(0, PADDED)
    inside = (token < tokens)[:, None]
    if WIDTH != PADDED:
        inside = inside & (place < WIDTH)[None, :]
    return tl.load(pointer + token[:, None] * stride + place[None, :], mask=inside, other=0.0)


INTERPRETED = bool(triton.knobs.runtime.interpret)

# Two functions of one name: the compiler looks a kernel's helpers up by their own names.
if INTERPRETED or torch.version.cuda is None:

    @triton.jit
    def exp2(x):
        return tl.exp2(x)

else:

    @triton.jit
    def exp2(x):
        """One instruction of the hardware; what is smaller than 2⁻¹²⁶ is nothing."""
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
