"""timm's attentions, taken apart by type: plain, rotary (EVA, DINOv3), relative bias (BEiT)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm.models.beit as beit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn

from ...scoring.attention import Heads
from ...tokens import Tokens
from ..positions import bias_among


def dropout_of(attention: Any) -> float:
    return float(attention.attn_drop.p) if attention.training else 0.0


def _by_heads(x: Tensor, heads: int) -> Tensor:
    split = (*x.shape[:2], heads, x.shape[2] // heads)  # written out: a batch may be empty
    return x.reshape(split).transpose(1, 2)


def splits(layer: object) -> bool:
    """May a layer's weights be used by parts? One that was wrapped or quantised may do more."""
    return type(layer) is nn.Linear and "forward" not in layer.__dict__


def linear_by_parts(
    layer: Any, x: Tensor, first: int, queries: int | None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A linear layer's first outputs, of the tokens that ask, and its other outputs, of all."""
    if queries is None or not splits(layer):
        out = layer(x) if bias is None else F.linear(x, layer.weight, bias)
        return out[:, :queries, :first], out[..., first:]
    bias = layer.bias if bias is None else bias
    start, end = (None, None) if bias is None else (bias[:first], bias[first:])
    asked = F.linear(x[:, :queries], layer.weight[:first], start)
    return asked, F.linear(x, layer.weight[first:], end)


def _qkv(
    attention: Any, x: Tensor, queries: int | None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """From one layer: q of the tokens that ask, k and v of all."""
    width = attention.proj.in_features
    q, kv = linear_by_parts(attention.qkv, x, width, queries, bias)
    k, v = kv[..., :width], kv[..., width:]
    q, k, v = (_by_heads(part, attention.num_heads) for part in (q, k, v))
    return q, k, v


def _biased_qkv(attention: Any, x: Tensor, queries: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """EVA and BEiT keep the biases of q and v apart from a k that has none."""
    if attention.q_bias is None:
        return _qkv(attention, x, queries)
    biases = (attention.q_bias, attention.k_bias, attention.v_bias)
    if not attention.qkv_bias_separate:
        return _qkv(attention, x, queries, torch.cat(biases))
    parts = zip(_qkv(attention, x, queries), biases, strict=True)
    q, k, v = (part + _by_heads(bias[None, None], part.shape[1]) for part, bias in parts)
    return q, k, v


def _gate(attention: Any, x: Tensor, queries: int | None) -> Tensor | None:
    gate = getattr(attention, "gate", None)
    return None if gate is None else gate(x[:, :queries]).sigmoid()


def _plain(
    attention: Any, x: Tensor, tokens: Tokens, given: dict[str, Any], queries: int | None
) -> Heads:
    rest = _gate(attention, x, queries)
    q, k, v = _qkv(attention, x, queries)
    q, k = attention.q_norm(q), attention.k_norm(k)
    dropout = dropout_of(attention)
    return Heads(q, k, v, attention.scale, attention.fused_attn, dropout, rest=rest)


def _rotary(
    attention: Any, x: Tensor, tokens: Tokens, given: dict[str, Any], queries: int | None
) -> Heads:
    rest = _gate(attention, x, queries)
    key_heads = getattr(attention, "num_kv_heads", attention.num_heads)
    if attention.qkv is None:
        q = _by_heads(attention.q_proj(x[:, :queries]), attention.num_heads)
        k = _by_heads(attention.k_proj(x), key_heads)
        v = _by_heads(attention.v_proj(x), key_heads)
    elif isinstance(attention, eva.EvaAttention):
        q, k, v = _biased_qkv(attention, x, queries)
    else:
        q, k, v = _qkv(attention, x, queries)
    plain_q, plain_k = attention.q_norm(q), attention.k_norm(k)
    q, k = plain_q, plain_k
    rope = given.get("rope")
    if rope is not None:
        rope = _follow(rope, tokens)
        k = _turn(attention, k, rope).type_as(v)
        # A few queries are those of prefix tokens, which have no position to turn by.
        q = (q if queries is not None else _turn(attention, q, rope)).type_as(v)
    if key_heads != attention.num_heads:
        groups = attention.num_heads // key_heads
        k, v, plain_k = (part.repeat_interleave(groups, dim=1) for part in (k, v, plain_k))
    plain = {"plain_q": plain_q, "plain_k": plain_k}
    dropout, fused = dropout_of(attention), attention.fused_attn
    return Heads(q, k, v, attention.scale, fused, dropout, rest=rest, **plain)


def _follow(rope: Tensor, tokens: Tokens) -> Tensor:
    """The rotary table indexes the original grid; tokens that have moved take their rows along."""
    if not tokens.moved:
        return rope
    rows = rope[..., tokens.source, :]
    return rows.unsqueeze(1) if rope.dim() == 2 else rows.movedim(-3, 0)


def _turn(attention: Any, x: Tensor, rope: Tensor) -> Tensor:
    prefix, half = attention.num_prefix_tokens, getattr(attention, "rotate_half", False)
    turned = apply_rot_embed_cat(x[:, :, prefix:], rope, half=half)
    return torch.cat((x[:, :, :prefix], turned), dim=2)


def _relative(
    attention: Any, x: Tensor, tokens: Tokens, given: dict[str, Any], queries: int | None
) -> Heads:
    q, k, v = _biased_qkv(attention, x, queries)
    bias, shared = None, given.get("shared_rel_pos_bias")
    if attention.relative_position_bias_table is not None:
        bias = attention._get_rel_pos_bias()
        if shared is not None:
            bias = bias + shared
    elif shared is not None:
        bias = shared
    if bias is not None:
        bias = bias_among(bias, tokens, queries) if tokens.moved else bias[..., :queries, :]
    fused, dropout = attention.fused_attn, dropout_of(attention)
    return Heads(q, k, v, attention.scale, fused, dropout, bias)


SPLITS: dict[type, Callable[[Any, Tensor, Tokens, dict[str, Any], int | None], Heads]] = {
    vit.Attention: _plain,
    eva.EvaAttention: _rotary,
    eva.AttentionRope: _rotary,
    beit.Attention: _relative,
}


def project(attention: Any, heads: Heads, output: Tensor) -> Tensor:
    """What every timm attention does with its heads' output."""
    output = output.transpose(1, 2).flatten(2)
    if hasattr(attention, "norm"):
        output = attention.norm(output)
    if heads.rest is not None:
        output = output * heads.rest
    return attention.proj_drop(attention.proj(output))  # type: ignore[no-any-return]
