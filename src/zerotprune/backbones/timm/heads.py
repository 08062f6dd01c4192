"""What the heads of timm's models read of the tokens that reach them."""

from __future__ import annotations

from typing import Any

import timm.models.beit as beit
import timm.models.deit as deit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
from timm.layers import AttentionPoolLatent, AttentionPoolPrr

from ..stand_in import is_refused

_FORWARDS = (vit.VisionTransformer.forward, eva.Eva.forward, beit.Beit.forward)
_HEADS = (
    vit.VisionTransformer.forward_head,
    deit.VisionTransformerDistilled.forward_head,
    eva.Eva.forward_head,
    beit.Beit.forward_head,
)
_POOLS = (vit.VisionTransformer.pool, eva.Eva.pool)


def head_reads_prefix_only(model: Any) -> bool:
    """Is it sure that the model's head reads no patch token?"""
    pools = model.global_pool != "token" or getattr(model, "attn_pool", None) is not None
    return _is_known(model) and not pools and model.num_prefix_tokens > 0


def head_weighs_sizes(model: Any) -> bool:
    """Is it known how the head pools, so that it can be done by the patches in each token?"""
    kind, how, pool = type(model), model.global_pool, getattr(model, "attn_pool", None)
    if not _is_known(model) or kind.forward_head is deit.VisionTransformerDistilled.forward_head:
        return False
    if kind.forward_head is beit.Beit.forward_head:
        return bool(how == "avg")
    if kind.pool not in _POOLS:
        return False
    if pool is not None:
        return type(pool) in (AttentionPoolLatent, AttentionPoolPrr) and "forward" not in vars(pool)
    return how in ("avg", "avgmax", "max")


def _is_known(model: Any) -> bool:
    kind, own = type(model), model.__dict__
    replaced = any(
        name in own and not is_refused(own[name])
        for name in ("forward_features", "forward_head", "pool")
    )
    return kind.forward in _FORWARDS and kind.forward_head in _HEADS and not replaced
