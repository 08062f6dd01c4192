"""LV-ViT's blocks, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...cost import BlockShape
from ...scoring.attention import Heads
from ...tokens import Tokens
from ..attention import layer_for_queries, merge_heads, split_heads
from ..counting import linear_macs, norm_values

#: the parts of a block; those of `tlt` have drop path as well
PARTS = {"norm1", "attn", "norm2", "mlp", "drop_path"}


@dataclass(frozen=True, eq=False)
class LVViTBlock:
    """x + attention(norm1(x)) / skip_lam, then x + mlp(norm2(x)) / skip_lam."""

    block: Any

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention, x = self.block.attn, self.block.norm1(tokens.x)
        q, kv = layer_for_queries(attention.qkv, x, attention.proj.in_features, queries)
        q, k, v = (split_heads(part, attention.num_heads) for part in (q, *kv.chunk(2, dim=-1)))
        drop = getattr(attention, "attn_drop", None)
        dropout = float(drop.p) if drop is not None and attention.training else 0.0
        fused = getattr(attention, "fused_attn", False)
        return [Heads(q, k, v, attention.scale, fused, dropout)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        attention = self.block.attn
        branch = attention.proj(merge_heads(outputs[0]))
        drop = getattr(attention, "proj_drop", None)
        return self._sum(x, branch if drop is None else drop(branch))

    def feed(self, x: Tensor) -> Tensor:
        return self._sum(x, self.block.mlp(self.block.norm2(x)))

    def _sum(self, x: Tensor, branch: Tensor) -> Tensor:
        drop = getattr(self.block, "drop_path", None)
        branch = branch if drop is None else drop(branch)
        return x + branch / float(self.block.skip_lam)


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
