"""How timm's models end: what their heads read, and how they pool tokens by size."""

from __future__ import annotations

import inspect
from typing import Any

import timm.layers
import timm.models.beit as beit
import timm.models.deit as deit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
from torch import Tensor, nn

from ...scoring.attention import Heads, output
from ...shapes import Float
from ...tokens import Tokens
from ..attention import merge_heads, split_heads
from ..ending import (
    BlockRow,
    Ending,
    Proxy,
    identity,
    is_foreign,
    is_refusal,
    weighted_maximum,
    weighted_mean,
)

_FORWARDS = (vit.VisionTransformer.forward, eva.Eva.forward, beit.Beit.forward)
_DISTILLED = deit.VisionTransformerDistilled.forward_head
_HEADS = (
    vit.VisionTransformer.forward_head,
    eva.Eva.forward_head,
    beit.Beit.forward_head,
    _DISTILLED,
)
_POOLS = [kind.pool for kind in (vit.VisionTransformer, eva.Eva) if hasattr(kind, "pool")]

#: attention pooling, by class; older versions of timm lack the one, or the mask of the other
_LATENT: Any = timm.layers.AttentionPoolLatent
_REFINED: Any = getattr(timm.layers, "AttentionPoolPrr", None)
_ATTENTION_POOLS = [_REFINED] if _REFINED is not None else []
if "attn_mask" in inspect.signature(_LATENT.forward).parameters:
    _ATTENTION_POOLS.append(_LATENT)


def can_enter(model: Any) -> bool:
    """Return whether blocks get the residual stream and nothing else. Other families pass positions
    as well, and a custom forward may do anything."""
    kind, attributes = type(model), model.__dict__
    known = kind.forward is vit.VisionTransformer.forward
    known = known and kind.forward_features is vit.VisionTransformer.forward_features
    return known and not is_foreign(model) and "forward_features" not in attributes


def averages_prefix(model: Any) -> bool:
    """Return whether the head averages the CLS and distillation tokens, as in a distilled model."""
    return type(model).forward_head is _DISTILLED


class TimmEnding(Ending):
    def last_block(self) -> nn.Module:
        block: nn.Module = self.model.blocks[-1]
        return block

    def around(self) -> tuple[nn.Module, ...]:
        return self.model.blocks, self.model.norm

    def bypassed(self) -> list[nn.Module]:
        pool = getattr(self.model, "attn_pool", None)
        return [self.model.blocks, *([pool] if type(pool) is _REFINED else [])]

    def reads_prefix_only(self) -> bool:
        model = self.model
        pools = model.global_pool != "token" or getattr(model, "attn_pool", None) is not None
        return self._is_known() and not pools and model.num_prefix_tokens > 0

    def weighs_sizes(self) -> bool:
        model, kind = self.model, type(self.model)
        if not self._is_known() or kind.forward_head is _DISTILLED:
            return False
        if kind.forward_head is beit.Beit.forward_head:
            return bool(model.global_pool == "avg")
        if getattr(kind, "pool", None) not in _POOLS:
            return False
        pool = getattr(model, "attn_pool", None)
        if pool is not None:
            return type(pool) in _ATTENTION_POOLS and "forward" not in vars(pool)
        return model.global_pool in ("avg", "avgmax", "max")

    def _is_known(self) -> bool:
        """Return whether forward and head are timm's own."""
        kind, attributes = type(self.model), self.model.__dict__
        replaced = any(
            name in attributes and not is_refusal(attributes[name])
            for name in ("forward_features", "forward_head", "pool")
        )
        return kind.forward in _FORWARDS and kind.forward_head in _HEADS and not replaced

    def run(self, last: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model = self.model
        seen = Proxy(model, blocks=BlockRow(model.blocks, last))
        return self._end(type(model).forward_features(seen, *args, **kwargs), last)

    def enter(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model, last = self.model, self.last_kwargs()
        seen = Proxy(
            model,
            blocks=BlockRow(list(model.blocks)[block - 1 :], last),
            patch_embed=identity,
            _pos_embed=identity,
            patch_drop=identity,
            norm_pre=identity,
            grad_checkpointing=False,  # it needs an nn.Sequential
        )
        outputs: Tensor = self._end(type(model).forward_features(seen, x), last)
        return outputs

    def _end(self, features: Tensor, last: dict[str, Any]) -> Any:
        if "left" in last:
            return self.head(features, last["left"])
        return self.model.forward_head(features)

    def head(self, features: Tensor, left: list[Tokens]) -> Any:
        """Run the model's head over the features of the tokens that left the last block."""
        model, tokens = self.model, left[-1]
        forward_head = type(model).forward_head  # that of the model may be refused
        if self.reads_prefix_only() or tokens.weight() is None:
            return forward_head(model, features)
        # BEiT pools by `global_pool`, the others by `pool`.
        pooled = Proxy(model, pool=identity, global_pool="")
        return forward_head(pooled, self._pool(features, tokens))

    def _pool(self, x: Tensor, tokens: Tokens) -> Tensor:
        assert self.proportional is not None
        model, weight, size = self.model, tokens.weight(), tokens.weight(self.proportional)
        assert weight is not None
        pool = getattr(model, "attn_pool", None)
        # EVA's attention pooling has no such option, and reads all tokens.
        if not getattr(model, "pool_include_prefix", pool is not None):
            prefix = model.num_prefix_tokens
            x, weight = x[:, prefix:], weight[:, prefix:]
            size = None if size is None else size[:, prefix:]
        if pool is not None:
            if type(pool) is _REFINED:
                return _refine(pool, x, weight, size)
            mask = None if size is None else size.log().to(x.dtype)[:, None, None]
            return pool(x, attn_mask=mask)  # type: ignore[no-any-return]
        if model.global_pool == "max":
            return weighted_maximum(x, weight)
        mean = weighted_mean(x, weight)
        return mean if model.global_pool == "avg" else 0.5 * (weighted_maximum(x, weight) + mean)


def _refine(pool: Any, x: Tensor, weight: Tensor, size: Tensor | None) -> Tensor:
    """Pool as timm's `AttentionPoolPrr`, which takes no mask: self-attention without projections,
    then the first token or the mean."""
    x = pool.pre_norm(x)
    part = split_heads(x, pool.num_heads)
    heads = Heads(part, part, part, pool.scale, pool.fused_attn, 0.0, size=size)
    x = pool.post_norm(merge_heads(output(heads)))
    return x[:, 0] if pool.pool == "token" else weighted_mean(x, weight)
