"""The geometry of timm's models: the cost of each block, the stem and the head."""

from __future__ import annotations

from typing import Any

import timm.models.vision_transformer as vit
from torch import nn

from ...cost import BlockShape, Geometry
from ..attention import is_plain
from ..counting import linear_macs, module_macs, norm_values, uncountable
from .blocks import BLOCKS, PostNorm
from .ending import TimmEnding


def attentions(block: Any) -> list[Any]:
    """Return the attention modules of a block, or the block itself if it has no such module."""
    if hasattr(block, "attns"):  # several, side by side
        return [branch.attn for branch in block.attns]
    return [getattr(block, "attn", block)]


def geometry_of(model: Any, blocks: list[Any]) -> Geometry:
    grid, dim, prefix = model.patch_embed.grid_size, model.embed_dim, model.num_prefix_tokens
    ending = TimmEnding(model)
    once = linear_macs(model.head) + linear_macs(getattr(model, "head_dist", None))
    once_norms = norm_values(model.fc_norm) if hasattr(model, "fc_norm") else 0
    per_token = per_pair = 0
    pool: Any = getattr(model, "attn_pool", None)
    if hasattr(pool, "latent"):
        per_token = linear_macs(pool.kv) + 2 * pool.latent_len * dim
        once += pool.latent_len * (linear_macs(pool) - linear_macs(pool.kv))
        once_norms += pool.latent_len * norm_values(pool)
        if not getattr(model, "pool_include_prefix", True):
            once -= prefix * per_token
    elif pool is not None:
        per_pair = 2 * dim
    return Geometry(
        blocks=tuple(_shape(block) for block in blocks),
        grid=(int(grid[0]), int(grid[1])),
        prefix=prefix,
        cls=getattr(model, "cls_token", None) is not None,
        pools_patches=not ending.reads_prefix_only(),
        weighs_sizes=ending.weighs_sizes(),
        dim=dim,
        stem=_stem(model.patch_embed),
        stem_norms=norm_values(getattr(model, "norm_pre", None)),
        head=once,
        head_token=per_token,
        head_pair=per_pair,
        head_norms=norm_values(model.norm),
        head_norms_once=once_norms,
    )


def _stem(embed: Any) -> int:
    size = embed.img_size
    if size is None:
        raise TypeError("cannot prune a model whose patch embedding has no image size")
    if type(embed) is vit.PatchEmbed and isinstance(embed.proj, nn.Conv2d):
        projection = embed.proj
        kernel = projection.kernel_size[0] * projection.kernel_size[1]
        patches = embed.grid_size[0] * embed.grid_size[1]
        return int(patches * kernel * projection.in_channels * projection.out_channels)
    first = next(weight for weight in embed.parameters() if weight.dim() == 4)
    return module_macs(embed, (1, first.shape[1], *size))


def _shape(block: Any) -> BlockShape:
    modules = attentions(block)
    if modules == [block]:  # one input projection for attention and MLP together
        attention, mlp = linear_macs(block), 0
        width = block.num_heads * block.head_dim
        layer = block.in_proj
        kv = 2 * width * layer.in_features if is_plain(layer) else linear_macs(layer)
        queries = attention - kv
    else:
        attention = sum(linear_macs(module) for module in modules)
        mlp = linear_macs(block) - attention
        width = sum(module.proj.in_features for module in modules)
        queries = sum(_query_macs(module) for module in modules)
    if not attention:
        raise uncountable(getattr(modules[0], "proj", modules[0]))
    mlp_norms = sum(norm_values(getattr(block, name, None)) for name in ("norm2", "mlp", "ffns"))
    query_norms = sum(_query_norms(module) for module in modules)
    if BLOCKS[type(block)] is PostNorm:
        query_norms += norm_values(block.norm1)
    return BlockShape(
        attention=attention,
        queries=queries,
        mlp=mlp,
        width=width,
        heads=sum(module.num_heads for module in modules),
        attention_norms=norm_values(block) - mlp_norms,
        query_norms=query_norms,
        mlp_norms=mlp_norms,
    )


def _query_macs(attention: Any) -> int:
    """Count the MACs that an attention spends on queries alone."""
    macs = linear_macs(attention.proj) + linear_macs(getattr(attention, "gate", None))
    if attention.qkv is None:
        return macs + linear_macs(attention.q_proj)
    return macs + (linear_macs(attention.qkv) // 3 if is_plain(attention.qkv) else 0)


def _query_norms(attention: Any) -> int:
    after = norm_values(getattr(attention, "norm", None))
    return after + int(attention.num_heads) * norm_values(getattr(attention, "q_norm", None))
