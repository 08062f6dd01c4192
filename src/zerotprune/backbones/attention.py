"""What the attentions of libraries share, and blocks with packed attention.

Packed attention has one matrix for q, k and v: `nn.MultiheadAttention` in torchvision and
open_clip, and the class of open_clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..scoring.attention import Heads
from ..tokens import Tokens


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Turn (batch, tokens, width) into (batch, heads, tokens, width of a head)."""
    head_dim = x.shape[2] // num_heads  # written out: a batch may be empty
    heads: Tensor = x.unflatten(-1, (num_heads, head_dim)).transpose(1, 2)
    return heads


def merge_heads(x: Tensor) -> Tensor:
    """Turn (batch, heads, tokens, width of a head) into (batch, tokens, width)."""
    return x.transpose(1, 2).flatten(2)


def project_for_queries(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: int, queries: int | None
) -> tuple[Tensor, Tensor]:
    """Project the first `queries` tokens to the `first` outputs (q), and all tokens to the other
    outputs (k and v). None projects all tokens to all outputs."""
    if queries is None:
        out = F.linear(x, weight, bias)
        return out[..., :first], out[..., first:]
    first_bias, other_bias = (None, None) if bias is None else (bias[:first], bias[first:])
    q = F.linear(x[:, :queries], weight[:first], first_bias)
    return q, F.linear(x, weight[first:], other_bias)


def is_plain(layer: object) -> bool:
    """Return whether the weights of a layer can be split. A wrapped or quantized layer may do
    more."""
    return type(layer) is nn.Linear and "forward" not in layer.__dict__


def layer_for_queries(
    layer: Any, x: Tensor, first: int, queries: int | None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Apply `project_for_queries` to a layer, with `bias` instead of its own. Call the layer
    where possible, so that its hooks run."""
    if queries is not None and is_plain(layer):
        bias = layer.bias if bias is None else bias
        return project_for_queries(x, layer.weight, bias, first, queries)
    out = layer(x) if bias is None else F.linear(x, layer.weight, bias)
    return out[:, :queries, :first], out[..., first:]


def bias_among(bias: Tensor, tokens: Tokens, queries: int | None) -> Tensor:
    """Select the relative position bias between the queries and the tokens that are left, prefix
    tokens first."""
    if not tokens.moved:
        return bias[..., :queries, :]
    table = bias.reshape(bias.shape[-3:])
    batch, patches = tokens.source.shape
    prefix = tokens.x.shape[1] - patches
    first = torch.arange(prefix, device=bias.device).expand(batch, -1)
    index = torch.cat((first, tokens.source + prefix), dim=1)
    return table[:, index[:, :queries].unsqueeze(2), index.unsqueeze(1)].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class PackedBlock:
    """x + attention(ln_1(x)), then x + mlp(ln_2(x)).

    Args:
        block: The library's block.
        attention: The name of its attention.
        after_attention: Names of modules that act on that branch before the sum, if it has them.
        after_mlp: The same for the branch of the MLP.
    """

    block: Any
    attention: str
    after_attention: tuple[str, ...] = ()
    after_mlp: tuple[str, ...] = ()

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention, x = getattr(self.block, self.attention), self.block.ln_1(tokens.x)
        weight = attention.in_proj_weight
        width = weight.shape[0] // 3
        q, kv = project_for_queries(x, weight, attention.in_proj_bias, width, queries)
        q, k, v = (split_heads(part, attention.num_heads) for part in (q, *kv.chunk(2, dim=-1)))
        q, k = _through(attention, ("ln_q",), q), _through(attention, ("ln_k",), k)
        return [Heads(q, k, v, attention.head_dim**-0.5, _is_fused(attention), _dropout(attention))]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        attention, output = getattr(self.block, self.attention), outputs[0]
        scale = getattr(attention, "head_scale", None)
        output = merge_heads(output if scale is None else output * scale)
        branch = _through(attention, ("ln_inner", "out_proj", "out_drop"), output)
        return x + _through(self.block, self.after_attention, branch)

    def feed(self, x: Tensor) -> Tensor:
        branch = self.block.mlp(self.block.ln_2(x))
        return x + _through(self.block, self.after_mlp, branch)


def _through(module: Any, names: tuple[str, ...], x: Tensor) -> Tensor:
    """Apply the named modules that exist."""
    for name in names:
        step = getattr(module, name, None)
        x = x if step is None else step(x)
    return x


def _is_fused(attention: Any) -> bool:
    """Return whether it is fused. open_clip has a switch, whose name depends on the version."""
    return bool(getattr(attention, "use_fsdpa", getattr(attention, "use_sdpa", True)))


def _dropout(attention: Any) -> float:
    if not attention.training:
        return 0.0
    if isinstance(attention, nn.MultiheadAttention):
        return float(attention.dropout)
    return float(attention.attn_drop.p)


def why_not_packed(attention: Any) -> str:
    """Say why an attention cannot be taken apart as a packed one; "" if it can."""
    if not isinstance(attention, nn.MultiheadAttention):
        packed = getattr(attention, "in_proj_weight", None) is not None
        return "" if packed else "its attention has no packed matrix for q, k and v"
    if type(attention) is not nn.MultiheadAttention or "forward" in attention.__dict__:
        return "its attention was replaced by something else"
    if not attention.batch_first:
        return "its attention expects tokens before images (batch_first=False)"
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        return "its attention takes keys or values from elsewhere"
    return ""
