"""Count multiply-accumulates in closed form, from a model's geometry and its token counts.

There are two conventions, and every figure names its own:
"full"   all matrix products and convolutions, with patch embedding and head, as torch counts
"paper"  as the paper counts (fvcore without the patch embedding): norms are 5 per value
Both include the cost of pruning itself: votes and matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Convention = Literal["full", "paper"]
#: count what affects the output, or everything, as the paper does
Compute = Literal["needed", "all"]


@dataclass(frozen=True)
class BlockShape:
    """The cost of one block."""

    attention: int  # MACs of the linear layers of its attention, per token
    queries: int  # … of those that only queries need: q, output, gate
    mlp: int  # MACs of the linear layers of its MLP, per token
    width: int  # of all heads together; attention costs twice this per pair of tokens
    heads: int
    attention_norms: int  # normalized values per token
    query_norms: int  # … of those that only queries need
    mlp_norms: int


@dataclass(frozen=True)
class Geometry:
    """What the cost of a Vision Transformer depends on."""

    blocks: tuple[BlockShape, ...]
    grid: tuple[int, int]
    prefix: int  # tokens that are not patches: CLS, distillation, registers
    cls: bool  # is token 0 a CLS token?
    pools_patches: bool  # may the head read more than the prefix tokens?
    dim: int
    stem: int  # patch embedding
    stem_norms: int  # normalized values between patch embedding and first block, per token
    head: int  # after the last block, for any number of tokens
    head_token: int  # … per token (attention pooling)
    head_pair: int  # … per pair of tokens
    head_norms: int  # normalized values of the final norm, per token
    head_norms_once: int  # … per image
    weighs_sizes: bool = False  # can its pooling weigh merged tokens by size?
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
        """Return the geometry for another number of patches. Its rows and columns are unknown, but
        do not affect the cost."""
        stem = round(self.stem * patches / self.patches)
        return replace(self, grid=(1, patches), stem=stem)

    def votes(self, block: int, patches: int) -> int:
        """Return the MACs of one round of votes on the graph of a block."""
        return self.blocks[block - 1].heads * (self.prefix + patches) ** 2

    def row(self, block: int, patches: int) -> int:
        """Return the MACs of one row of that graph, if the rest is not computed."""
        return self.blocks[block - 1].width * (self.prefix + patches)


class Load(NamedTuple):
    """The work of one block."""

    attention: int  # tokens in its attention
    queries: int  # of these, the queries: fewer only in the last block
    mlp: int  # tokens in its MLP
    method: int  # MACs of the pruning itself


def block_macs(shape: BlockShape, load: Load, convention: Convention = "full") -> int:
    """Return the MACs of one block for one image."""
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
    """Return the MACs of the whole model for one image, with `left` tokens at the head."""
    pairs = zip(geometry.blocks, loads, strict=True)
    total = sum(block_macs(shape, load, convention) for shape, load in pairs)
    total += geometry.head + left * geometry.head_token + left**2 * geometry.head_pair
    if convention == "full":
        return total + geometry.stem
    norms = geometry.tokens * geometry.stem_norms + left * geometry.head_norms
    return total + 5 * (norms + geometry.head_norms_once)
