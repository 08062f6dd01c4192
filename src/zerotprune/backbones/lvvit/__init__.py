"""LV-ViT: our own model, and the `LV_ViT` of its first implementation, the package `tlt`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cost import Geometry
from ..contract import Backbone, Parts
from ..counting import linear_macs, module_macs, norm_values
from .blocks import PARTS, LVViTBlock, block_shape
from .create import create, shape_in, size_of
from .ending import LVViTEnding
from .model import LVViT
from .store import read, write

__all__ = ["LVViT", "create", "read", "shape_in", "take_apart", "write"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class LVViTBackbone(Backbone):
    ending_class = LVViTEnding

    def parts(self, block: nn.Module) -> Parts:
        return LVViTBlock(block)

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
        """ImageNet's, where there are so many."""
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
