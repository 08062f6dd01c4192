"""What the heads of open_clip's towers read of the tokens that reach them, and what they cost."""

from __future__ import annotations

from typing import Any

import open_clip.transformer as clip
from torch import nn

from ..counting import linear_macs, norm_values
from ..stand_in import is_refused

_OWN = ("_pool", "_global_pool")


def reads_cls_only(model: Any) -> bool:
    """Is it sure that the tower's head reads no patch token, and gives none out?"""
    plain = model.attn_pool is None and model.pool_type == "tok"
    return _is_known(model) and plain and not model.output_tokens


def weighs_sizes(model: Any) -> bool:
    """Is it known how the head pools, so that it can be done by the patches in each token?"""
    if not _is_known(model):
        return False
    if model.attn_pool is None:
        return model.pool_type in ("tok", "avg")
    poolers = (model.attn_pool, model.attn_pool_contrastive)
    return all(type(pool) is clip.AttentionalPooler for pool in poolers if pool is not None)


def is_cascade(model: Any) -> bool:
    """Does the second attention pooling read what the first gives, and no token?"""
    return bool(getattr(model, "attn_pool_type", "") == "cascade")


def attention_macs(model: Any) -> tuple[int, int, int, int]:
    """Of attention pooling: multiply-accumulates once and for each token, and normalised values
    likewise."""
    first, second = model.attn_pool, getattr(model, "attn_pool_contrastive", None)
    if first is None:
        # `ln_post` after the pooling, where it stands there
        return 0, 0, norm_values(model.ln_post) if model.final_ln_after_pool else 0, 0
    once, per_token = _pooler_macs(first)
    queries, normed = first.query.shape[0], norm_values(model.ln_post)
    norms_once, norms_token = norm_values(first.ln_q) * queries, norm_values(first.ln_k)
    if second is None:
        return once, per_token, norms_once + normed * queries, norms_token
    norms_once += norm_values(second.ln_q)
    second_once, second_token = _pooler_macs(second)
    if is_cascade(model):
        norms_once += queries * norm_values(second.ln_k)
        return (once + second_once + queries * second_token, per_token, norms_once,
                norms_token + normed)  # fmt: skip
    norms_token += norm_values(second.ln_k) + normed
    return once + second_once, per_token + second_token, norms_once, norms_token


def _pooler_macs(pool: Any) -> tuple[int, int]:
    attention: nn.MultiheadAttention = pool.attn
    queries, width = pool.query.shape
    context = attention.kdim
    once = queries * (width * width + linear_macs(attention.out_proj))
    return once, 2 * context * width + 2 * queries * width


def _is_known(model: Any) -> bool:
    kind, own = type(model), model.__dict__
    plain = all(getattr(kind, name) is getattr(clip.VisionTransformer, name) for name in _OWN)
    return plain and not any(name in own and not is_refused(own[name]) for name in _OWN)
