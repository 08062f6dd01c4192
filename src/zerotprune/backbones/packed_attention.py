"""Blocks around an attention with one packed matrix for q, k and v: that of `nn.MultiheadAttention`
in torchvision and open_clip, and open_clip's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..cost import BlockShape
from ..scoring.attention import Heads
from ..tokens import Tokens
from .counting import linear_macs, norm_values


@dataclass(frozen=True, eq=False)
class PackedBlock:
    """x + attention(ln_1(x)), then x + mlp(ln_2(x)). The modules that `after_attention` and
    `after_mlp` name, where the block has them, act on a branch before the sum."""

    block: Any
    attention: str
    after_attention: tuple[str, ...] = ()
    after_mlp: tuple[str, ...] = ()

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        x = self.block.ln_1(tokens.x)
        return [_heads(getattr(self.block, self.attention), x, queries)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        branch = _project(getattr(self.block, self.attention), outputs[0])
        return x + _through(self.block, self.after_attention, branch)

    def feed(self, x: Tensor) -> Tensor:
        branch = self.block.mlp(self.block.ln_2(x))
        return x + _through(self.block, self.after_mlp, branch)


def _heads(attention: Any, x: Tensor, queries: int | None) -> Heads:
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    if queries is None:
        q, k, v = F.linear(x, weight, bias).chunk(3, dim=-1)
    else:
        width = weight.shape[0] // 3
        start, end = (None, None) if bias is None else (bias[:width], bias[width:])
        q = F.linear(x[:, :queries], weight[:width], start)
        k, v = F.linear(x, weight[width:], end).chunk(2, dim=-1)
    q, k, v = (part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
    q, k = _through(attention, ("ln_q",), q), _through(attention, ("ln_k",), k)
    return Heads(q, k, v, attention.head_dim**-0.5, _is_fused(attention), _dropout(attention))


def _project(attention: Any, output: Tensor) -> Tensor:
    scale = getattr(attention, "head_scale", None)
    output = output if scale is None else output * scale
    return _through(
        attention, ("ln_inner", "out_proj", "out_drop"), output.transpose(1, 2).flatten(2)
    )


def _through(module: Any, names: tuple[str, ...], x: Tensor) -> Tensor:
    """Through those modules of these names that there are."""
    for name in names:
        step = getattr(module, name, None)
        x = x if step is None else step(x)
    return x


def _is_fused(attention: Any) -> bool:
    """open_clip's can be told not to use fused attention, by one name or another."""
    return bool(getattr(attention, "use_fsdpa", getattr(attention, "use_sdpa", True)))


def _dropout(attention: Any) -> float:
    if not attention.training:
        return 0.0
    if isinstance(attention, nn.MultiheadAttention):
        return float(attention.dropout)
    return float(attention.attn_drop.p)


def why_not(attention: Any) -> str:
    """Why an attention cannot be taken apart here; "" if it can."""
    if not isinstance(attention, nn.MultiheadAttention):
        packed = getattr(attention, "in_proj_weight", None) is not None
        return "" if packed else "its attention has no packed matrix for q, k and v"
    if type(attention) is not nn.MultiheadAttention or "forward" in attention.__dict__:
        return "its attention was exchanged for something else"
    if not attention.batch_first:
        return "its attention wants tokens before images (batch_first=False)"
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        return "its attention takes keys or values from elsewhere"
    return ""


def packed_shape(block: Any, attention: Any, after_attention: tuple[str, ...]) -> BlockShape:
    """What a block costs."""
    packed, out = attention.in_proj_weight.numel(), linear_macs(attention.out_proj)
    heads = int(attention.num_heads)
    of_q, of_k = (heads * norm_values(getattr(attention, name, None)) for name in ("ln_q", "ln_k"))
    after = norm_values(getattr(attention, "ln_inner", None))
    after += sum(norm_values(getattr(block, name, None)) for name in after_attention)
    return BlockShape(
        attention=packed + out,
        queries=packed // 3 + out,
        mlp=linear_macs(block.mlp),
        width=attention.in_proj_weight.shape[0] // 3,
        heads=heads,
        attention_norms=norm_values(block.ln_1) + of_q + of_k + after,
        query_norms=of_q + after,
        mlp_norms=norm_values(block.ln_2) + norm_values(block.mlp),
    )
