"""The geometry of open_clip's towers: what each block, the stem and the head cost."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...cost import Geometry
from ..counting import linear_macs, module_macs, norm_values, packed_shape
from .ending import ClipEnding, is_cascade

#: the modules of a block that act on its attention's output, where it has them
AFTER_ATTENTION = ("ln_attn", "ls_1")


def geometry_of(model: Any, blocks: list[Any]) -> Geometry:
    ending = ClipEnding(model)
    once, per_token, norms_once, norms_token = _pooling_work(model)
    if model.proj is not None:
        once += model.proj.numel()
    after = model.attn_pool is None and not model.final_ln_after_pool
    return Geometry(
        blocks=tuple(packed_shape(block, block.attn, AFTER_ATTENTION) for block in blocks),
        grid=(int(model.grid_size[0]), int(model.grid_size[1])),
        prefix=1,
        cls=True,
        pools_patches=not ending.reads_prefix_only(),
        weighs_sizes=ending.weighs_sizes(),
        dim=int(model.conv1.out_channels),
        stem=module_macs(model.conv1, (1, model.conv1.in_channels, *model.image_size)),
        stem_norms=norm_values(model.ln_pre),
        head=once,
        head_token=per_token,
        head_pair=0,
        head_norms=norms_token + (norm_values(model.ln_post) if after else 0),
        head_norms_once=norms_once,
    )


def _pooling_work(model: Any) -> tuple[int, int, int, int]:
    """Count the multiply-accumulates of attention pooling, once and for each token, and the values
    of norms likewise."""
    first, second = model.attn_pool, getattr(model, "attn_pool_contrastive", None)
    if first is None:
        # `ln_post` may come after the pooling
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
