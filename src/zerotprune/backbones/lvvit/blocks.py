"""LV-ViT's blocks, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ...cost import BlockShape
from ...scoring.attention import Heads
from ...tokens import Tokens
from ..counting import linear_macs, norm_values

#: what a block may hold; one of `tlt` may also drop whole branches in training
PARTS = {"norm1", "attn", "norm2", "mlp", "drop_path"}


@dataclass(frozen=True, eq=False)
class LVViTBlock:
    """x + attention(norm1(x)) / skip_lam, then x + mlp(norm2(x)) / skip_lam."""

    block: Any

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention, x = self.block.attn, self.block.norm1(tokens.x)
        if queries is None:
            q, k, v = attention.qkv(x).chunk(3, dim=-1)
        else:
            q, k, v = _few_queries(attention.qkv, x, queries)
        q, k, v = (
            part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in (q, k, v)
        )
        drop = getattr(attention, "attn_drop", None)
        dropout = float(drop.p) if drop is not None and attention.training else 0.0
        fused = getattr(attention, "fused_attn", False)
        return [Heads(q, k, v, attention.scale, fused, dropout)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        attention = self.block.attn
        branch = attention.proj(outputs[0].transpose(1, 2).flatten(2))
        drop = getattr(attention, "proj_drop", None)
        return self._sum(x, branch if drop is None else drop(branch))

    def feed(self, x: Tensor) -> Tensor:
        return self._sum(x, self.block.mlp(self.block.norm2(x)))

    def _sum(self, x: Tensor, branch: Tensor) -> Tensor:
        drop = getattr(self.block, "drop_path", None)
        branch = branch if drop is None else drop(branch)
        return x + branch / float(self.block.skip_lam)


def _few_queries(layer: Any, x: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
    """q of the first few tokens, k and v of all."""
    width = layer.out_features // 3
    start, end = (None, None) if layer.bias is None else (layer.bias[:width], layer.bias[width:])
    q = F.linear(x[:, :queries], layer.weight[:width], start)
    k, v = F.linear(x, layer.weight[width:], end).chunk(2, dim=-1)
    return q, k, v


def block_shape(block: Any) -> BlockShape:
    attention = block.attn
    packed, out = linear_macs(attention.qkv), linear_macs(attention.proj)
    return BlockShape(
        attention=packed + out,
        queries=packed // 3 + out,
        mlp=linear_macs(block.mlp),
        width=attention.proj.in_features,
        heads=attention.num_heads,
        attention_norms=norm_values(block.norm1),
        query_norms=0,
        mlp_norms=norm_values(block.norm2),
    )
