"""timm's attentions and blocks, taken apart: plain, rotary (EVA, DINOv3), relative bias (BEiT)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm.models.beit as beit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import Tensor

from ..block import Heads, Parts
from ..tokens import Tokens

# ---------------------------------------------------------------- attention, by type


def _dropout(attention: Any) -> float:
    return float(attention.attn_drop.p) if attention.training else 0.0


def _by_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _plain(attention: Any, x: Tensor, tokens: Tokens, given: dict[str, Any]) -> Heads:
    batch, count, _ = x.shape
    gate = getattr(attention, "gate", None)
    rest = None if gate is None else gate(x).sigmoid()
    qkv = attention.qkv(x).reshape(batch, count, 3, attention.num_heads, attention.head_dim)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    q, k = attention.q_norm(q), attention.k_norm(k)
    dropout = _dropout(attention)
    return Heads(q, k, v, attention.scale, attention.fused_attn, dropout, rest=rest)


def _biased_qkv(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """EVA and BEiT keep the biases of q and v apart from a k that has none."""
    if attention.q_bias is None:
        qkv = attention.qkv(x)
    else:
        bias = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
        if attention.qkv_bias_separate:
            qkv = attention.qkv(x) + bias
        else:
            qkv = F.linear(x, attention.qkv.weight, bias)
    qkv = qkv.reshape(*x.shape[:2], 3, attention.num_heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def _rotary(attention: Any, x: Tensor, tokens: Tokens, given: dict[str, Any]) -> Heads:
    gate = getattr(attention, "gate", None)
    rest = None if gate is None else gate(x).sigmoid()
    key_heads = getattr(attention, "num_kv_heads", attention.num_heads)
    if attention.qkv is None:
        q = _by_heads(attention.q_proj(x), attention.num_heads)
        k = _by_heads(attention.k_proj(x), key_heads)
        v = _by_heads(attention.v_proj(x), key_heads)
    elif isinstance(attention, eva.EvaAttention):
        q, k, v = _biased_qkv(attention, x)
    else:
        qkv = attention.qkv(x).reshape(*x.shape[:2], 3, attention.num_heads, attention.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    plain_q, plain_k = attention.q_norm(q), attention.k_norm(k)
    q, k = plain_q, plain_k
    rope = given.get("rope")
    if rope is not None:
        rope = _follow(rope, tokens)
        q, k = (_turn(attention, turned, rope).type_as(v) for turned in (q, k))
    if key_heads != attention.num_heads:
        groups = attention.num_heads // key_heads
        k, v, plain_k = (part.repeat_interleave(groups, dim=1) for part in (k, v, plain_k))
    dropout, fused = _dropout(attention), attention.fused_attn
    return Heads(q, k, v, attention.scale, fused, dropout, None, plain_q, plain_k, rest)


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


def _relative(attention: Any, x: Tensor, tokens: Tokens, given: dict[str, Any]) -> Heads:
    q, k, v = _biased_qkv(attention, x)
    bias, shared = None, given.get("shared_rel_pos_bias")
    if attention.relative_position_bias_table is not None:
        bias = attention._get_rel_pos_bias()
        if shared is not None:
            bias = bias + shared
    elif shared is not None:
        bias = shared
    if bias is not None and tokens.moved:
        bias = _among(bias, tokens)
    fused, dropout = attention.fused_attn, _dropout(attention)
    return Heads(q, k, v, attention.scale, fused, dropout, bias)


def _among(bias: Tensor, tokens: Tokens) -> Tensor:
    """The relative bias between the tokens that are left, prefix tokens first."""
    table = bias.reshape(bias.shape[-3:])
    batch, patches = tokens.source.shape
    prefix = tokens.x.shape[1] - patches
    first = torch.arange(prefix, device=bias.device).expand(batch, -1)
    index = torch.cat((first, tokens.source + prefix), dim=1)
    return table[:, index.unsqueeze(2), index.unsqueeze(1)].transpose(0, 1)


SPLITS: dict[type, Callable[[Any, Tensor, Tokens, dict[str, Any]], Heads]] = {
    vit.Attention: _plain,
    eva.EvaAttention: _rotary,
    eva.AttentionRope: _rotary,
    beit.Attention: _relative,
}


def _project(attention: Any, heads: Heads, output: Tensor) -> Tensor:
    """What every timm attention does with its heads' output."""
    output = output.transpose(1, 2).flatten(2)
    if hasattr(attention, "norm"):
        output = attention.norm(output)
    if heads.rest is not None:
        output = output * heads.rest
    return attention.proj_drop(attention.proj(output))  # type: ignore[no-any-return]


# ---------------------------------------------------------------- blocks, by type


@dataclass(frozen=True, eq=False)
class _PreNorm:
    """x + attention(norm(x)), then x + mlp(norm(x)); LayerScale as a module or as a parameter."""

    block: Any

    def attend(self, tokens: Tokens, given: dict[str, Any]) -> list[Heads]:
        attention = self.block.attn
        return [SPLITS[type(attention)](attention, self.block.norm1(tokens.x), tokens, given)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = self._scale(_project(block.attn, heads[0], outputs[0]), "ls1", "gamma_1")
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

    def attend(self, tokens: Tokens, given: dict[str, Any]) -> list[Heads]:
        attention = self.block.attn
        return [SPLITS[type(attention)](attention, tokens.x, tokens, given)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = block.norm1(_project(block.attn, heads[0], outputs[0]))
        return x + block.drop_path1(branch)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        return x + self.block.drop_path2(self.block.norm2(self.block.mlp(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class _ParallelScaling:
    """One residual branch: attention and MLP side by side, out of one input projection."""

    block: Any

    def attend(self, tokens: Tokens, given: dict[str, Any]) -> list[Heads]:
        block = self.block
        mixed = block.in_proj(block.in_norm(tokens.x))
        hidden, q, k, v = torch.split(mixed, block.in_split, dim=-1)
        if block.mlp_bias is not None:
            hidden = hidden + block.mlp_bias
        q, k, v = (part.reshape(*part.shape[:2], block.num_heads, -1) for part in (q, k, v))
        q, k, v = (part.transpose(1, 2) for part in (block.q_norm(q), block.k_norm(k), v))
        return [Heads(q, k, v, block.scale, block.fused_attn, _dropout(block), rest=hidden)]

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

    def attend(self, tokens: Tokens, given: dict[str, Any]) -> list[Heads]:
        return [
            SPLITS[type(branch.attn)](branch.attn, branch.norm(tokens.x), tokens, given)
            for branch in self.block.attns
        ]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        branches = zip(self.block.attns, heads, outputs, strict=True)
        out = [
            branch.drop_path(branch.ls(_project(branch.attn, head, output)))
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
