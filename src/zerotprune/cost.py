"""Multiply-accumulates in closed form: a model's geometry and its token counts → GMACs.

Two conventions, to be named with every figure:
"full"   all matrix products and convolutions, with patch embedding and head; what torch counts
"paper"  the paper's (fvcore's without the patch embedding): norms count 5 per value
Both include what the pruning itself costs: votes and matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Convention = Literal["full", "paper"]
Compute = Literal["needed", "all"]  # what somebody reads, or all that the paper counts


@dataclass(frozen=True)
class BlockShape:
    """One block, in multiply-accumulates."""

    attention: int  # of its attention's linear layers, for each token
    queries: int  # … that part of it which only tokens that ask need: q, output, gate
    mlp: int  # of its MLP's linear layers, for each token
    width: int  # of all its heads together; attention itself costs twice this for a pair of tokens
    heads: int
    attention_norms: int  # normalised values for each token
    query_norms: int  # … those of them which only tokens that ask need
    mlp_norms: int


@dataclass(frozen=True)
class Geometry:
    """All that the cost of a Vision Transformer depends on."""

    blocks: tuple[BlockShape, ...]
    grid: tuple[int, int]
    prefix: int  # tokens that are not patches: CLS, distillation, registers
    cls: bool  # is token 0 a CLS token?
    pools_patches: bool  # does the head, for all we know, read more than the prefix tokens?
    dim: int
    stem: int  # patch embedding
    stem_norms: int  # normalised values between patch embedding and first block, for each token
    head: int  # after the last block, whatever the number of tokens
    head_token: int  # … for each token (attention pooling)
    head_pair: int  # … for each pair of tokens
    head_norms: int  # normalised values of the final norm, for each token
    head_norms_once: int  # … for each image
    weighs_sizes: bool = False  # can a head that reads patches count those in a merged token?
    needs_grid: bool = False  # does it give back every patch in its place?

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
        """One round of votes over the graph of a block."""
        return self.blocks[block - 1].heads * (self.prefix + patches) ** 2

    def row(self, block: int, patches: int) -> int:
        """One row of that graph, where the rest of it is not at hand."""
        return self.blocks[block - 1].width * (self.prefix + patches)


class Load(NamedTuple):
    """What one block has to handle."""

    attention: int  # tokens in its attention
    queries: int  # those of them that ask: all, but for the exact last block's
    mlp: int  # tokens in its MLP
    method: int  # multiply-accumulates of the pruning itself


def block_macs(shape: BlockShape, load: Load, convention: Convention = "full") -> int:
    silent = load.attention - load.queries
    total = load.attention * shape.attention - silent * shape.queries
    total += load.mlp * shape.mlp + load.method
    total += 2 * load.attention * load.queries * shape.width
    if convention == "paper":
        norms = load.attention * shape.attention_norms - silent * shape.query_norms
        total += 5 * (norms + load.mlp * shape.mlp_norms)
    return total


def total_macs(
    geometry: Geometry, loads: Sequence[Load], left: int, convention: Convention = "full"
) -> int:
    """The whole model for one image; `left` tokens reach the head."""
    pairs = zip(geometry.blocks, loads, strict=True)
    total = sum(block_macs(shape, load, convention) for shape, load in pairs)
    total += geometry.head + left * geometry.head_token + left**2 * geometry.head_pair
    if convention == "full":
        return total + geometry.stem
    norms = geometry.tokens * geometry.stem_norms + left * geometry.head_norms
    return total + 5 * (norms + geometry.head_norms_once)
