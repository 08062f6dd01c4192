"""transformers' blocks and attentions, taken apart by role.

All blocks are x + attention(norm(x)), then x + mlp(norm(x)). The attentions are plain, rotary
(DINOv3) or have a relative position bias (BEiT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...scoring.attention import Heads
from ...tokens import Tokens
from ..attention import bias_among, merge_heads
from ..contract import NO_MASK, BlockCall


def role(module: Any, *names: str) -> Any:
    """Return the first of these attributes that the module has."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    return None


def norm_before(block: Any) -> Any:
    """Return the norm before the attention."""
    return role(block, "layernorm_before", "norm1", "layer_norm1")


def norm_after(block: Any) -> Any:
    """Return the norm after the attention, before the MLP."""
    return role(block, "layernorm_after", "norm2", "layer_norm2")


def attention_of(block: Any) -> Any:
    return role(block, "attention", "self_attn")


def output_layer(attention: Any) -> Any:
    return role(attention, "o_proj", "out_proj")


_REENTRANT = (
    "reentrant gradient checkpointing loses what travels with the tokens of a pruned model: enable "
    'it with {"use_reentrant": False}'
)


class TransformersCall(BlockCall):
    """x, a mask by position or by name, and keywords."""

    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        x, *masks = args
        if type(x) is tuple:
            raise ValueError(_REENTRANT)
        others = dict(kwargs)
        if masks:
            others["attention_mask"] = masks[0]
        return x, others

    def checkpoint(self, block: Any) -> Callable[..., Any] | None:
        # Before transformers 5.23 the `__call__` of a block does it.
        if not getattr(block, "gradient_checkpointing", False):
            return None
        if type(block).__call__ is not nn.Module.__call__:
            return None
        checkpoint: partial[Any] = block._gradient_checkpointing_func
        if checkpoint.keywords.get("use_reentrant"):
            raise ValueError(_REENTRANT)
        return checkpoint


@dataclass(frozen=True, eq=False)
class PreNorm:
    """End each branch with dropout, layer scale and drop path, in this order, where it has them."""

    block: Any
    prefix: int  # how many tokens are not patches
    tower: bool = False  # does it get a mask of patches, which must mask none?

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        block = self.block
        x = norm_before(block)(tokens.x)
        rotary, bias = kwargs.get("position_embeddings"), self._bias(tokens, kwargs, queries)
        return [_split(attention_of(block), x, tokens, queries, rotary, bias)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        branch = output_layer(attention_of(self.block))(merge_heads(outputs[0]))
        return self._ended(branch, "layer_scale1", "lambda_1") + x

    def feed(self, x: Tensor) -> Tensor:
        block = self.block
        branch = block.mlp(norm_after(block)(x))
        return self._ended(branch, "layer_scale2", "lambda_2") + x

    def _ended(self, branch: Tensor, module: str, parameter: str) -> Tensor:
        block = self.block
        if hasattr(block, "dropout"):
            branch = block.dropout(branch)
        if hasattr(block, module):
            branch = getattr(block, module)(branch)
        elif hasattr(block, parameter):
            branch = getattr(block, parameter) * branch
        return block.drop_path(branch) if hasattr(block, "drop_path") else branch

    def _bias(self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None) -> Tensor | None:
        """Return BEiT's relative position bias: that of the block plus the one that all blocks
        share, which comes as a mask."""
        block, bias = self.block, kwargs.get("attention_mask")
        relative = hasattr(block, "relative_position_bias")
        if bias is not None and (kwargs.get("unmasked") or self._masks_nothing(bias)):
            bias = bias[:1] if relative else None
        if bias is not None and (not relative or len(bias) > 1):
            raise ValueError(NO_MASK)
        if relative and block.relative_position_bias is not None:
            height, width = (side // block.patch_size for side in kwargs["resolution"])
            resampled = kwargs.get("interpolate_pos_encoding", False)
            of_block = block.relative_position_bias(
                (height, width), resampled, dim_size=self.prefix + height * width
            )
            bias = of_block if bias is None else of_block + bias
        return None if bias is None else bias_among(bias, tokens, queries)

    def _masks_nothing(self, mask: Tensor) -> bool:
        """Return whether the mask masks nothing. Compiled code cannot read it, but `read_call` has
        refused all others."""
        if not self.tower or torch.compiler.is_compiling():
            return self.tower
        return bool((mask if mask.dtype == torch.bool else mask == 0).all())


def _split(
    attention: Any,
    x: Tensor,
    tokens: Tokens,
    queries: int | None,
    rotary: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
) -> Heads:
    q = _split_heads(attention.q_proj(x[:, :queries]), attention)
    k = _split_heads(attention.k_proj(x), attention)
    v = _split_heads(attention.v_proj(x), attention)
    plain: dict[str, Tensor] = {}
    if rotary is not None:
        plain = {"plain_q": q, "plain_k": k}
        cos, sin = (_follow(table, tokens) for table in rotary)
        k = _rotate(k, cos, sin)
        # If there are few queries, they are of prefix tokens, which have no position.
        q = q if queries is not None else _rotate(q, cos, sin)
    dropout = float(role(attention, "attention_dropout", "dropout")) if attention.training else 0.0
    # Whichever fused attention the library is set to, use that of torch.
    eager = attention.config._attn_implementation == "eager"
    scale = float(role(attention, "scaling", "scale"))
    return Heads(q, k, v, scale, not eager, dropout, bias, scales_logits=eager, **plain)


def _split_heads(x: Tensor, attention: Any) -> Tensor:
    heads: Tensor = x.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    return heads


def _follow(table: Tensor, tokens: Tokens) -> Tensor:
    """Select the rows of the rotary table for moved tokens; it covers the original grid."""
    return table[tokens.source].unsqueeze(1) if tokens.moved else table


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    prefix = x.shape[-2] - cos.shape[-2]
    patches = x[..., prefix:, :]
    first, second = patches.chunk(2, dim=-1)
    rotated = patches * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((x[..., :prefix, :], rotated), dim=-2)
