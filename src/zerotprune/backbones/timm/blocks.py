"""timm's blocks, taken apart by type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm.models.beit as beit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
import torch
from torch import Tensor

from ...scoring.attention import Heads
from ...task import Parts
from ...tokens import Tokens
from .attention import SPLITS, dropout_of, linear_by_parts, project


@dataclass(frozen=True, eq=False)
class _PreNorm:
    """x + attention(norm(x)), then x + mlp(norm(x)); LayerScale as a module or as a parameter."""

    block: Any

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention = self.block.attn
        x = self.block.norm1(tokens.x)
        return [SPLITS[type(attention)](attention, x, tokens, given, queries)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = self._scale(project(block.attn, heads[0], outputs[0]), "ls1", "gamma_1")
        return x + block.drop_path1(branch)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        block = self.block
        branch = self._scale(block.mlp(block.norm2(x)), "ls2", "gamma_2")
        return x + block.drop_path2(branch)  # type: ignore[no-any-return]

    def _scale(self, branch: Tensor, module: str, parameter: str) -> Tensor:
        if (scale := getattr(self.block, module, None)) is not None:
            return scale(branch)  # type: ignore[no-any-return]
        gamma = getattr(self.block, parameter, None)
        return branch if gamma is None else gamma * branch


@dataclass(frozen=True, eq=False)
class _PostNorm:
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    block: Any

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention = self.block.attn
        return [SPLITS[type(attention)](attention, tokens.x, tokens, given, queries)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = block.norm1(project(block.attn, heads[0], outputs[0]))
        return x + block.drop_path1(branch)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        return x + self.block.drop_path2(self.block.norm2(self.block.mlp(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class _ParallelScaling:
    """One residual branch: attention and MLP side by side, out of one input projection."""

    block: Any

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        block = self.block
        hidden_width, width, *_ = block.in_split
        x = block.in_norm(tokens.x)
        asked, kv = linear_by_parts(block.in_proj, x, hidden_width + width, queries)
        hidden, q = asked[..., :hidden_width], asked[..., hidden_width:]
        k, v = kv[..., :width], kv[..., width:]
        if block.mlp_bias is not None:
            hidden = hidden + block.mlp_bias
        q, k, v = (part.unflatten(-1, (block.num_heads, -1)) for part in (q, k, v))
        q, k, v = (part.transpose(1, 2) for part in (block.q_norm(q), block.k_norm(k), v))
        return [Heads(q, k, v, block.scale, block.fused_attn, dropout_of(block), rest=hidden)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        attended = outputs[0].transpose(1, 2).flatten(2)
        hidden = block.mlp_drop(block.mlp_act(heads[0].rest))
        if getattr(block, "out_proj", None) is not None:
            branch = block.out_proj(torch.cat((attended, hidden), dim=-1))
        else:
            branch = block.attn_out_proj(attended) + block.mlp_out_proj(hidden)
        return x + block.drop_path(block.ls(branch))  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class _ParallelThings:
    """Several attentions side by side, then several MLPs; their heads together make the graph."""

    block: Any

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        return [
            SPLITS[type(branch.attn)](branch.attn, branch.norm(tokens.x), tokens, given, queries)
            for branch in self.block.attns
        ]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        branches = zip(self.block.attns, heads, outputs, strict=True)
        out = [
            branch.drop_path(branch.ls(project(branch.attn, head, output)))
            for branch, head, output in branches
        ]
        return x + torch.stack(out).sum(dim=0)

    def feed(self, x: Tensor) -> Tensor:
        return x + torch.stack([branch(x) for branch in self.block.ffns]).sum(dim=0)


BLOCKS: dict[type, Callable[[Any], Parts]] = {
    vit.Block: _PreNorm,
    vit.ResPostBlock: _PostNorm,
    vit.ParallelScalingBlock: _ParallelScaling,
    vit.ParallelThingsBlock: _ParallelThings,
    eva.EvaBlock: _PreNorm,
    eva.EvaBlockPostNorm: _PostNorm,
    beit.Block: _PreNorm,
}
