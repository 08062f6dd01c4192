"""timm's Vision Transformers: the VisionTransformer family, EVA (with DINOv3) and BEiT.

A type that is not listed is refused by name: its forward may do what ours would silently leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import timm.models.beit as beit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
from torch import nn

from ...block import Parts
from ...cost import BlockShape, Geometry
from ..counting import linear_macs, module_macs, norm_values
from ..midway import Tail
from ..prefix_only import Shortcut
from .attention import SPLITS, splits
from .blocks import BLOCKS
from .midway import TimmTail, enters
from .prefix_only import TimmShortcut, reads_prefix_alone

_FAMILIES = (vit.VisionTransformer, eva.Eva, beit.Beit)


@dataclass(frozen=True, eq=False)
class TimmBackbone:
    model: nn.Module
    geometry: Geometry
    blocks: Sequence[nn.Module]

    def parts(self, block: nn.Module) -> Parts:
        return BLOCKS[type(block)](block)

    def shortcut(self) -> Shortcut:
        return TimmShortcut(self.model)

    def tail(self) -> Tail | None:
        return TimmTail(self.model) if enters(self.model) else None


def take_apart(model: Any) -> TimmBackbone:
    name = type(model).__name__
    if not isinstance(model, _FAMILIES):
        raise TypeError(f"cannot prune timm's {name}: it is not a VisionTransformer, Eva or Beit")
    if type(model).forward_features not in [family.forward_features for family in _FAMILIES]:
        raise TypeError(f"cannot prune {name}: it runs its blocks in a forward_features of its own")
    if not isinstance(getattr(model, "patch_drop", None), (nn.Identity, type(None))):
        raise TypeError(
            f"cannot prune {name} with patch dropout: it drops tokens by chance before we see them"
        )
    if getattr(getattr(model, "attn_pool", None), "pos_embed", None) is not None:
        raise TypeError(
            f"cannot prune {name}: its attention pooling adds a position to every patch of the grid"
        )
    blocks = list(model.blocks)
    for number, block in enumerate(blocks, start=1):
        _check(block, number, name)
    return TimmBackbone(model, _geometry(model, blocks), blocks)


def _check(block: Any, number: int, name: str) -> None:
    kinds: list[tuple[type, Mapping[type, Any]]] = [(type(block), BLOCKS)]
    if type(block) in BLOCKS:
        kinds += [(type(module), SPLITS) for module in _attentions(block) if module is not block]
    for kind, known in kinds:
        if kind not in known:
            why = "it is not known to the library"
            if "Diff" in kind.__name__:
                why = "differential attention has negative weights, so it is no graph to vote on"
            raise TypeError(f"cannot prune {name}: block {number} has a {kind.__name__}, and {why}")


def _attentions(block: Any) -> list[Any]:
    """The attention modules of a block; the block itself where it has none apart."""
    if isinstance(block, vit.ParallelThingsBlock):
        return [branch.attn for branch in block.attns]
    return [getattr(block, "attn", block)]


def _geometry(model: Any, blocks: list[Any]) -> Geometry:
    grid, dim, prefix = model.patch_embed.grid_size, model.embed_dim, model.num_prefix_tokens
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
        pools_patches=not reads_prefix_alone(model),
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
        raise TypeError("cannot prune a model whose patch embedding has no picture size")
    if type(embed) is vit.PatchEmbed:
        projection = embed.proj
        kernel = projection.kernel_size[0] * projection.kernel_size[1]
        patches = embed.grid_size[0] * embed.grid_size[1]
        return int(patches * kernel * projection.in_channels * projection.out_channels)
    return module_macs(embed, (1, 3, *size))


def _shape(block: Any) -> BlockShape:
    found = _attentions(block)
    if found == [block]:  # one input projection for attention and MLP together
        attention, mlp = linear_macs(block), 0
        width = block.num_heads * block.head_dim
        layer = block.in_proj
        kv = 2 * width * layer.in_features if splits(layer) else linear_macs(layer)
        queries = attention - kv
    else:
        attention = sum(linear_macs(module) for module in found)
        mlp = linear_macs(block) - attention
        width = sum(module.proj.in_features for module in found)
        queries = sum(_query_macs(module) for module in found)
    fed = [getattr(block, "norm2", None), getattr(block, "mlp", None), getattr(block, "ffns", None)]
    mlp_norms = sum(norm_values(module) for module in fed)
    query_norms = sum(_query_norms(module) for module in found)
    if isinstance(block, (vit.ResPostBlock, eva.EvaBlockPostNorm)):
        query_norms += norm_values(block.norm1)
    return BlockShape(
        attention=attention,
        queries=queries,
        mlp=mlp,
        width=width,
        heads=sum(module.num_heads for module in found),
        attention_norms=norm_values(block) - mlp_norms,
        query_norms=query_norms,
        mlp_norms=mlp_norms,
    )


def _query_macs(attention: Any) -> int:
    """Of an attention's linear layers, what is done only for the tokens that ask."""
    ask = linear_macs(attention.proj) + linear_macs(getattr(attention, "gate", None))
    if attention.qkv is None:
        return ask + linear_macs(attention.q_proj)
    return ask + (linear_macs(attention.qkv) // 3 if splits(attention.qkv) else 0)


def _query_norms(attention: Any) -> int:
    after = norm_values(getattr(attention, "norm", None))
    return after + int(attention.num_heads) * norm_values(getattr(attention, "q_norm", None))
