"""timm's blocks and attentions, taken apart by type.

The attentions are plain, rotary (EVA, DINOv3) or have a relative position bias (BEiT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import timm.models.beit as beit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import Tensor

from ...scoring.attention import Heads
from ...tokens import Tokens
from ..attention import bias_among, layer_for_queries, merge_heads, split_heads
from ..contract import Parts


def dropout_of(attention: Any) -> float:
    return float(attention.attn_drop.p) if attention.training else 0.0


def _qkv(
    attention: Any, x: Tensor, queries: int | None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if queries is None:  # q, k and v together, in a third of the steps
        qkv = attention.qkv(x) if bias is None else F.linear(x, attention.qkv.weight, bias)
        heads, (batch, tokens, width) = attention.num_heads, qkv.shape
        packed = qkv.view(batch, tokens, 3, heads, width // (3 * heads))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v
    width = attention.proj.in_features
    q, kv = layer_for_queries(attention.qkv, x, width, queries, bias)
    k, v = kv[..., :width], kv[..., width:]
    q, k, v = (split_heads(part, attention.num_heads) for part in (q, k, v))
    return q, k, v


def _biased_qkv(attention: Any, x: Tensor, queries: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute q, k and v with the separate biases of EVA and BEiT; k has none."""
    if attention.q_bias is None:
        return _qkv(attention, x, queries)
    biases = (attention.q_bias, attention.k_bias, attention.v_bias)
    if not getattr(attention, "qkv_bias_separate", False):
        return _qkv(attention, x, queries, torch.cat(biases))
    parts = zip(_qkv(attention, x, queries), biases, strict=True)
    q, k, v = (part + split_heads(bias[None, None], part.shape[1]) for part, bias in parts)
    return q, k, v


def _gate(attention: Any, x: Tensor, queries: int | None) -> Tensor | None:
    gate = getattr(attention, "gate", None)
    return None if gate is None else gate(x[:, :queries]).sigmoid()


def _plain(
    attention: Any, x: Tensor, tokens: Tokens, kwargs: dict[str, Any], queries: int | None
) -> Heads:
    gate = _gate(attention, x, queries)
    q, k, v = _qkv(attention, x, queries)
    q, k = attention.q_norm(q), attention.k_norm(k)
    dropout = dropout_of(attention)
    return Heads(q, k, v, attention.scale, attention.fused_attn, dropout, rest=gate)


def _rotary(
    attention: Any, x: Tensor, tokens: Tokens, kwargs: dict[str, Any], queries: int | None
) -> Heads:
    gate = _gate(attention, x, queries)
    kv_heads = getattr(attention, "num_kv_heads", attention.num_heads)
    if attention.qkv is None:
        q = split_heads(attention.q_proj(x[:, :queries]), attention.num_heads)
        k = split_heads(attention.k_proj(x), kv_heads)
        v = split_heads(attention.v_proj(x), kv_heads)
    elif isinstance(attention, eva.EvaAttention):
        q, k, v = _biased_qkv(attention, x, queries)
    else:
        q, k, v = _qkv(attention, x, queries)
    plain_q, plain_k = attention.q_norm(q), attention.k_norm(k)
    q, k = plain_q, plain_k
    rope = kwargs.get("rope")
    if rope is not None:
        rope = _follow(rope, tokens)
        k = _rotate(attention, k, rope).type_as(v)
        # If there are few queries, they are of prefix tokens, which have no position.
        q = (q if queries is not None else _rotate(attention, q, rope)).type_as(v)
    if kv_heads != attention.num_heads:
        groups = attention.num_heads // kv_heads
        k, v, plain_k = (part.repeat_interleave(groups, dim=1) for part in (k, v, plain_k))
    plain = {"plain_q": plain_q, "plain_k": plain_k}
    dropout, fused = dropout_of(attention), attention.fused_attn
    return Heads(q, k, v, attention.scale, fused, dropout, rest=gate, **plain)


def _follow(rope: Tensor, tokens: Tokens) -> Tensor:
    """Select the rows of the rotary table for moved tokens; it covers the original grid."""
    if not tokens.moved:
        return rope
    rows = rope[..., tokens.source, :]
    return rows.unsqueeze(1) if rope.dim() == 2 else rows.movedim(-3, 0)


def _rotate(attention: Any, x: Tensor, rope: Tensor) -> Tensor:
    prefix = attention.num_prefix_tokens
    # Older versions of timm have one order of channels, and no keyword.
    half = {"half": True} if getattr(attention, "rotate_half", False) else {}
    rotated = apply_rot_embed_cat(x[:, :, prefix:], rope, **half)
    return torch.cat((x[:, :, :prefix], rotated), dim=2)


def _relative(
    attention: Any, x: Tensor, tokens: Tokens, kwargs: dict[str, Any], queries: int | None
) -> Heads:
    q, k, v = _biased_qkv(attention, x, queries)
    bias = kwargs.get("shared_rel_pos_bias")
    if attention.relative_position_bias_table is not None:
        of_block = attention._get_rel_pos_bias()
        bias = of_block if bias is None else of_block + bias
    bias = None if bias is None else bias_among(bias, tokens, queries)
    fused, dropout = attention.fused_attn, dropout_of(attention)
    return Heads(q, k, v, attention.scale, fused, dropout, bias)


def _project(attention: Any, heads: Heads, output: Tensor) -> Tensor:
    """Merge and project the outputs of the heads, as every timm attention does."""
    output = merge_heads(output)
    if (norm := getattr(attention, "norm", None)) is not None:
        output = norm(output)
    if heads.rest is not None:
        output = output * heads.rest
    return attention.proj_drop(attention.proj(output))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class PreNorm:
    """x + attention(norm(x)), then x + mlp(norm(x)), with LayerScale."""

    block: Any

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention = self.block.attn
        x = self.block.norm1(tokens.x)
        return [ATTENTIONS[type(attention)](attention, x, tokens, kwargs, queries)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = block.ls1(_project(block.attn, heads[0], outputs[0]))
        return x + block.drop_path1(branch)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))  # type: ignore[no-any-return]


class PreNormGamma(PreNorm):
    """The same for EVA and BEiT, whose LayerScale is a parameter or None."""

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = _project(block.attn, heads[0], outputs[0])
        branch = branch if block.gamma_1 is None else block.gamma_1 * branch
        return x + block.drop_path1(branch)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        block = self.block
        branch = block.mlp(block.norm2(x))
        branch = branch if block.gamma_2 is None else block.gamma_2 * branch
        return x + block.drop_path2(branch)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class PostNorm:
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    block: Any

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention = self.block.attn
        return [ATTENTIONS[type(attention)](attention, tokens.x, tokens, kwargs, queries)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        branch = block.norm1(_project(block.attn, heads[0], outputs[0]))
        return x + block.drop_path1(branch)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        return x + self.block.drop_path2(self.block.norm2(self.block.mlp(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ParallelScaling:
    """One residual branch: attention and MLP side by side, out of one input projection."""

    block: Any

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        block = self.block
        hidden_width, width, *_ = block.in_split
        x = block.in_norm(tokens.x)
        hidden_and_q, kv = layer_for_queries(block.in_proj, x, hidden_width + width, queries)
        hidden, q = hidden_and_q[..., :hidden_width], hidden_and_q[..., hidden_width:]
        k, v = kv[..., :width], kv[..., width:]
        if block.mlp_bias is not None:
            hidden = hidden + block.mlp_bias
        q, k, v = (part.unflatten(-1, (block.num_heads, -1)) for part in (q, k, v))
        q, k, v = (part.transpose(1, 2) for part in (block.q_norm(q), block.k_norm(k), v))
        return [Heads(q, k, v, block.scale, block.fused_attn, dropout_of(block), rest=hidden)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        block = self.block
        attended = merge_heads(outputs[0])
        hidden = block.mlp_drop(block.mlp_act(heads[0].rest))
        if getattr(block, "out_proj", None) is not None:
            branch = block.out_proj(torch.cat((attended, hidden), dim=-1))
        else:
            branch = block.attn_out_proj(attended) + block.mlp_out_proj(hidden)
        return x + block.drop_path(block.ls(branch))  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class ParallelThings:
    """Several attentions side by side, then several MLPs; their heads together make the graph."""

    block: Any

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        heads = []
        for branch in self.block.attns:
            split = ATTENTIONS[type(branch.attn)]
            heads.append(split(branch.attn, branch.norm(tokens.x), tokens, kwargs, queries))
        return heads

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        branches = zip(self.block.attns, heads, outputs, strict=True)
        out = [
            branch.drop_path(branch.ls(_project(branch.attn, head, output)))
            for branch, head, output in branches
        ]
        return x + torch.stack(out).sum(dim=0)

    def feed(self, x: Tensor) -> Tensor:
        return x + torch.stack([branch(x) for branch in self.block.ffns]).sum(dim=0)


def _known(*table: tuple[ModuleType, Mapping[str, Any]]) -> dict[type, Any]:
    """Look classes up by name: a version of timm that lacks one has no model of it either."""
    return {
        getattr(module, name): value
        for module, values in table
        for name, value in values.items()
        if hasattr(module, name)
    }


#: take an attention, its input, the tokens, the block's keywords and the number of queries
Split = Callable[[Any, Tensor, Tokens, dict[str, Any], int | None], Heads]
ATTENTIONS: dict[type, Split] = _known(
    (vit, {"Attention": _plain}),
    (eva, {"EvaAttention": _rotary, "AttentionRope": _rotary}),
    (beit, {"Attention": _relative}),
)
BLOCKS: dict[type, Callable[[Any], Parts]] = _known(
    (
        vit,
        {
            "Block": PreNorm,
            "ResPostBlock": PostNorm,
            "ParallelScalingBlock": ParallelScaling,
            "ParallelThingsBlock": ParallelThings,
        },
    ),
    (eva, {"EvaBlock": PreNormGamma, "EvaBlockPostNorm": PostNorm}),
    (beit, {"Block": PreNormGamma}),
)
