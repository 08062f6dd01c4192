"""Tiles of an attention graph: what the kernels that compute them from q and k share.

A tile costs one matrix product and one exponential for each entry, which on a GPU is faster than
reading the entries from memory. Exponents and logarithms are to base 2, as in the hardware.
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


#: Compile a kernel without specializing it to these arguments. They change from stage to stage and
#: from schedule to schedule: a kernel specialized to 1 or to multiples of 16 would be recompiled
#: again and again.
kernel = partial(
    triton.jit,
    do_not_specialize=(
        "tokens", "count", "count_a", "count_b", "rounds", "votes_stride",
        "score_batch", "score_head", "stride_a", "stride_b", "group_a", "group_b",
        "kept", "parts", "gone", "into", "first_place", "step", "prefix",
    ),
)  # fmt: skip


def launching(x: Tensor) -> AbstractContextManager[object]:
    """Make the device of the tensor the current one for a launch.

    Compiled code does that itself, and the interpreter has only the CPU.
    """
    if torch.compiler.is_compiling() or x.device.type != "cuda":
        return nullcontext()
    return torch.cuda.device(x.device)


def head_width(q: Tensor) -> dict[str, Any]:
    """Return the constants by which the vectors of one head enter a matrix product."""
    width = q.shape[-1]
    return {
        "WIDTH": width,
        "PADDED": max(16, triton.next_power_of_2(width)),
        # Three tf32 products make one float32 product; half precision is exact in tf32.
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
    }


@triton.jit
def portion(rows, ROWS: tl.constexpr):
    """Return the graph or image that a program of a flat grid works on, and its first row there.

    Neighbors in the grid share it, and find in the cache what they all read.
    """
    blocks = tl.cdiv(rows, ROWS)
    owner = tl.program_id(0) // blocks
    return owner.to(tl.int64), (tl.program_id(0) % blocks) * ROWS


@triton.jit
def tokens_of(
    pointer, stride, first, tokens, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Load `BLOCK` tokens of one head, with zeros beyond the last token."""
    token = first + tl.arange(0, BLOCK)
    place = tl.arange(0, PADDED)
    inside = (token < tokens)[:, None]
    if WIDTH != PADDED:
        inside = inside & (place < WIDTH)[None, :]
    return tl.load(pointer + token[:, None] * stride + place[None, :], mask=inside, other=0.0)


INTERPRETED = bool(triton.knobs.runtime.interpret)

# Two definitions of one name: the compiler looks up the helpers of a kernel by name.
if INTERPRETED or torch.version.cuda is None:

    @triton.jit
    def exp2(x):
        return tl.exp2(x)

else:

    @triton.jit
    def exp2(x):
        """Use the one hardware instruction, which flushes results below 2⁻¹²⁶ to zero."""
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
