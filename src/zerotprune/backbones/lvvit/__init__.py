"""LV-ViT: our own model, and the `LV_ViT` of its first implementation, the package `tlt`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cost import BlockShape, Geometry
from ...scoring.attention import Heads
from ...tokens import Tokens
from ..attention import layer_for_queries, merge_heads, split_heads
from ..contract import Backbone, Parts
from ..counting import linear_macs, module_macs, norm_values
from .create import create, read, shape_in, size_of, write
from .ending import LVViTEnding
from .model import LVViT

__all__ = ["LVViT", "create", "read", "shape_in", "take_apart", "write"]


#: the parts of a block; those of `tlt` have drop path as well
PARTS = {"norm1", "attn", "norm2", "mlp", "drop_path"}


@dataclass(frozen=True, eq=False)
class LVViTBlock:
    """x + attention(norm1(x)) / skip_lam, then x + mlp(norm2(x)) / skip_lam."""

    block: Any

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        attention, x = self.block.attn, self.block.norm1(tokens.x)
        q, kv = layer_for_queries(attention.qkv, x, attention.proj.in_features, queries)
        q, k, v = (split_heads(part, attention.num_heads) for part in (q, *kv.chunk(2, dim=-1)))
        drop = getattr(attention, "attn_drop", None)
        dropout = float(drop.p) if drop is not None and attention.training else 0.0
        fused = getattr(attention, "fused_attn", False)
        return [Heads(q, k, v, attention.scale, fused, dropout)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        attention = self.block.attn
        branch = attention.proj(merge_heads(outputs[0]))
        drop = getattr(attention, "proj_drop", None)
        return self._sum(x, branch if drop is None else drop(branch))

    def feed(self, x: Tensor) -> Tensor:
        return self._sum(x, self.block.mlp(self.block.norm2(x)))

    def _sum(self, x: Tensor, branch: Tensor) -> Tensor:
        drop = getattr(self.block, "drop_path", None)
        branch = branch if drop is None else drop(branch)
        return x + branch / float(self.block.skip_lam)


def block_shape(block: Any) -> BlockShape:
    attention = block.attn
    packed, out = linear_macs(attention.qkv), linear_macs(attention.proj)
    return BlockShape(
        attention=packed + out,
        queries=packed // 3 + out,
        mlp=linear_macs(block.mlp),
        width=attention.proj.in_features,
        heads=attention.num_heads,
        attention_norms=norm_values(block.norm1),
        query_norms=0,
        mlp_norms=norm_values(block.norm2),
    )


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class LVViTBackbone(Backbone):
    ending_class = LVViTEnding

    def parts(self, block: nn.Module) -> Parts:
        return LVViTBlock(block)

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        return [cast(nn.Module, block.attn)]

    @property
    def name(self) -> str:
        return size_of(self.model)[0]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        embed: Any = self.model.patch_embed
        height, width = embed.img_size
        return int(embed.conv1.in_channels), int(height), int(width)

    @property
    def outputs(self) -> int:
        return int(getattr(self.model.head, "out_features", 0))

    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        """Resize bicubically and crop the middle, as the published models were evaluated."""
        from torchvision.transforms._presets import ImageClassification, InterpolationMode

        side = size or self.input_shape[1]
        resized = int(side / size_of(self.model)[1].crop)
        transform: Callable[[Any], Tensor] = ImageClassification(
            crop_size=side, resize_size=resized, mean=_MEAN, std=_STD,
            interpolation=InterpolationMode.BICUBIC,
        )  # fmt: skip
        return transform

    @property
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        return _MEAN, _STD

    def class_names(self) -> list[str]:
        """Return the names of ImageNet's classes if the model has as many."""
        from torchvision.models import ViT_B_16_Weights

        names = list(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
        return names if len(names) == self.outputs else []

    def resize_(self, size: int) -> None:
        model: Any = self.model
        patch = _patch(model)
        side = model.patch_embed.img_size[0] // patch
        if size % patch:
            raise ValueError(f"size must be a multiple of {patch}, got {size}")
        cls, grid = model.pos_embed.data[:, :1], model.pos_embed.data[:, 1:]
        grid = grid.transpose(1, 2).unflatten(-1, (side, side))
        grid = F.interpolate(grid, (size // patch,) * 2, mode="bicubic", antialias=True)
        positions = grid.flatten(2).transpose(1, 2)
        model.pos_embed = nn.Parameter(torch.cat((cls, positions), dim=1))
        model.patch_embed.img_size = (size, size)


def take_apart(model: Any) -> LVViTBackbone:
    name = type(model).__name__
    if not isinstance(model, LVViT) and name != "LV_ViT":
        raise TypeError(f"cannot prune tlt's {name}: it is not an LV_ViT")
    if not hasattr(model, "aux_head") or not hasattr(model.patch_embed, "conv1"):
        raise TypeError(f"cannot prune {name}: it lacks the stem or the two heads of an LV-ViT")
    blocks = list(model.blocks)
    for number, block in enumerate(blocks, start=1):
        parts = {part for part, _ in block.named_children()}
        if parts - PARTS or not hasattr(block, "skip_lam") or "attn" not in parts:
            raise TypeError(
                f"cannot prune {name}: block {number} has a {type(block).__name__}, and it is not "
                "supported"
            )
    return LVViTBackbone(model, _geometry(model, blocks), blocks)


def _geometry(model: Any, blocks: list[Any]) -> Geometry:
    height, width = model.patch_embed.img_size
    patch, per_patch = _patch(model), linear_macs(model.aux_head)
    return Geometry(
        blocks=tuple(block_shape(block) for block in blocks),
        grid=(height // patch, width // patch),
        prefix=1,
        cls=True,
        pools_patches=True,
        weighs_sizes=True,
        dim=int(model.cls_token.shape[-1]),
        stem=module_macs(
            model.patch_embed, (1, model.patch_embed.conv1.in_channels, height, width)
        ),
        stem_norms=0,
        head=linear_macs(model.head) - per_patch,  # CLS does not go through the second head
        head_token=per_patch,
        head_pair=0,
        head_norms=norm_values(model.norm),
        head_norms_once=0,
    )


def _patch(model: Any) -> int:
    """Return the side of a patch: the stem halves the image before its last convolution."""
    return 2 * int(model.patch_embed.proj.stride[0])
