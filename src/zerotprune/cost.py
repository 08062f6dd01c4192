"""Multiply-accumulates in closed form: a model's geometry and its token counts → GMACs.

There are two conventions; every figure names its own:
"full"   all matrix products and convolutions, with patch embedding and head; what torch counts
"paper"  the paper's (fvcore's without the patch embedding): norms count 5 per value
Both include the cost of pruning itself: votes and matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Convention = Literal["full", "paper"]
Compute = Literal["needed", "all"]  # what affects the output, or all that the paper counts


@dataclass(frozen=True)
class BlockShape:
    """One block, in multiply-accumulates."""

    attention: int  # linear layers of its attention, per token
    queries: int  # … the part of it that only queries need: q, output, gate
    mlp: int  # linear layers of its MLP, per token
    width: int  # of all heads together; attention costs twice this per pair of tokens
    heads: int
    attention_norms: int  # normalised values per token
    query_norms: int  # … the part of them that only queries need
    mlp_norms: int


@dataclass(frozen=True)
class Geometry:
    """Everything that the cost of a Vision Transformer depends on."""

    blocks: tuple[BlockShape, ...]
    grid: tuple[int, int]
    prefix: int  # tokens that are not patches: CLS, distillation, registers
    cls: bool  # is token 0 a CLS token?
    pools_patches: bool  # may the head read more than the prefix tokens?
    dim: int
    stem: int  # patch embedding
    stem_norms: int  # normalised values between patch embedding and first block, per token
    head: int  # after the last block, for any number of tokens
    head_token: int  # … per token (attention pooling)
    head_pair: int  # … per pair of tokens
    head_norms: int  # normalised values of the final norm, per token
    head_norms_once: int  # … per image
    weighs_sizes: bool = False  # can its pooling weight merged tokens by size?
    needs_grid: bool = False  # does it return a vector for every patch?

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    def at(self, patches: int) -> Geometry:
        """Return the geometry with another number of patches, as images of another size give it.
        How they lie in rows and columns is not known then, and does not matter to the cost."""
        stem = round(self.stem * patches / self.patches)
        return replace(self, grid=(1, patches), stem=stem)

    def votes(self, block: int, patches: int) -> int:
        """Return the cost of one round of votes on the graph of a block."""
        return self.blocks[block - 1].heads * (self.prefix + patches) ** 2

    def row(self, block: int, patches: int) -> int:
        """Return the cost of one row of that graph, if the rest is not computed."""
        return self.blocks[block - 1].width * (self.prefix + patches)


class Load(NamedTuple):
    """The work of one block."""

    attention: int  # tokens in its attention
    queries: int  # of these, the queries: fewer only in the last block
    mlp: int  # tokens in its MLP
    method: int  # multiply-accumulates of the pruning itself


def block_macs(shape: BlockShape, load: Load, convention: Convention = "full") -> int:
    """Return the cost of one block for one image."""
    no_query = load.attention - load.queries
    total = load.attention * shape.attention - no_query * shape.queries
    total += load.mlp * shape.mlp + load.method
    total += 2 * load.attention * load.queries * shape.width
    if convention == "paper":
        norms = load.attention * shape.attention_norms - no_query * shape.query_norms
        total += 5 * (norms + load.mlp * shape.mlp_norms)
    return total


def total_macs(
    geometry: Geometry, loads: Sequence[Load], left: int, convention: Convention = "full"
) -> int:
    """Return the cost of the whole model for one image; `left` tokens reach the head."""
    pairs = zip(geometry.blocks, loads, strict=True)
    total = sum(block_macs(shape, load, convention) for shape, load in pairs)
    total += geometry.head + left * geometry.head_token + left**2 * geometry.head_pair
    if convention == "full":
        return total + geometry.stem
    norms = geometry.tokens * geometry.stem_norms + left * geometry.head_norms
    return total + 5 * (norms + geometry.head_norms_once)
