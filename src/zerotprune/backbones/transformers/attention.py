"""transformers' attentions, taken apart by role: plain, rotary (DINOv3), relative bias (BEiT)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...scoring.attention import Heads
from ...tokens import Tokens


def role(module: Any, *names: str) -> Any:
    """What a module has under the first of these names that it knows."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    return None


def attention_of(block: Any) -> Any:
    return role(block, "attention", "self_attn")


def output_layer(attention: Any) -> Any:
    return role(attention, "o_proj", "out_proj")


def split(
    attention: Any,
    x: Tensor,
    tokens: Tokens,
    queries: int | None,
    rotary: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
) -> Heads:
    """q of the tokens that ask, k and v of all, and what is added to their logits."""
    q = _by_heads(attention.q_proj(x[:, :queries]), attention)
    k = _by_heads(attention.k_proj(x), attention)
    v = _by_heads(attention.v_proj(x), attention)
    plain: dict[str, Tensor] = {}
    if rotary is not None:
        plain = {"plain_q": q, "plain_k": k}
        table = tuple(_follow(each, tokens) for each in rotary)
        k = _turn(k, *table)
        # A few queries are those of prefix tokens, which have no position to turn by.
        q = q if queries is not None else _turn(q, *table)
    dropout = float(role(attention, "attention_dropout", "dropout")) if attention.training else 0.0
    # Whatever fused attention the library has been set to, torch's is fused as well.
    eager = attention.config._attn_implementation == "eager"
    scale = float(role(attention, "scaling", "scale"))
    return Heads(q, k, v, scale, not eager, dropout, bias, scales_logits=eager, **plain)


def project(attention: Any, output: Tensor) -> Tensor:
    return output_layer(attention)(output.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _by_heads(x: Tensor, attention: Any) -> Tensor:
    heads: Tensor = x.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    return heads


def _follow(table: Tensor, tokens: Tokens) -> Tensor:
    """The rotary table indexes the original grid; tokens that have moved take their rows along."""
    return table[tokens.source].unsqueeze(1) if tokens.moved else table


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    prefix = x.shape[-2] - cos.shape[-2]
    patches = x[..., prefix:, :]
    first, second = patches.chunk(2, dim=-1)
    turned = patches * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((x[..., :prefix, :], turned), dim=-2)
