"""LV-ViT by name (lvvit_t, lvvit_s, lvvit_m, lvvit_l) or from a folder: create, read, write.

The config of a folder is ours, as no library reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..storing import read_by_arguments, write_by_arguments
from .model import LVViT, Stem


class Size(NamedTuple):
    dim: int
    depth: int
    heads: int
    skip_lam: float
    stem: int = 64
    crop: float = 0.9  # share of an image's side that is kept


SIZES = {
    "lvvit_t": Size(240, 12, 4, 1.0),
    "lvvit_s": Size(384, 16, 6, 2.0),
    "lvvit_m": Size(512, 20, 8, 2.0, crop=1.0),
    "lvvit_l": Size(768, 24, 12, 3.0, stem=128, crop=1.0),
}


def create(
    name: str, pretrained: bool, *, classes: int | None = None, size: int | None = None
) -> nn.Module:
    """Create an LV-ViT with random weights.

    Args:
        name: A key of `SIZES`.
        pretrained: Refused, as no library carries the weights.
        classes: The number of classes; 1000 by default.
        size: The side of the images in pixels; 224 by default.
    """
    if name not in SIZES:
        raise ValueError(f"unknown model {name!r}: LV-ViT comes as {', '.join(SIZES)}")
    if pretrained:
        raise ValueError(
            f"cannot fetch the weights of {name}: download a checkpoint of LV-ViT "
            "(github.com/zihangJiang/TokenLabeling) and give the file with --weights"
        )
    *shape, _ = SIZES[name]
    dim, depth, heads, skip_lam, stem = shape
    return LVViT(
        dim=int(dim), depth=int(depth), heads=int(heads), skip_lam=skip_lam, stem=int(stem),
        image_size=size or 224, classes=classes or 1000,
    )  # fmt: skip


def size_of(model: Any) -> tuple[str, Size]:
    """Return name and size of a model of this shape; "" and S's crop if there is none."""
    shape = (model.cls_token.shape[-1], len(model.blocks))
    for name, size in SIZES.items():
        if shape == (size.dim, size.depth):
            return name, size
    return "", SIZES["lvvit_s"]


def shape_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options of `create` that fit these weights."""
    shape: dict[str, Any] = {}
    if "head.weight" in state:
        shape["classes"] = state["head.weight"].shape[0]
    if "pos_embed" in state:
        shape["size"] = math.isqrt(state["pos_embed"].shape[1] - 1) * Stem.PATCH
    return shape


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: An `LVViT`.
        folder: The folder to write to.
        config: The arguments of `LVViT`, if they cannot be read off the model.
    """
    if not isinstance(model, LVViT):
        raise TypeError(
            f"cannot save {type(model).__name__} of another package: load its weights into "
            "zerotprune.backbones.lvvit.LVViT, which has the same names"
        )
    write_by_arguments(model, LVViT, config or _arguments(model), folder)


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model of a folder, with or without its weights."""
    model, _ = read_by_arguments(folder, LVViT, weights)
    return model


def _arguments(model: Any) -> dict[str, Any]:
    return {
        "dim": int(model.cls_token.shape[-1]),
        "depth": len(model.blocks),
        "heads": int(model.blocks[0].attn.num_heads),
        "skip_lam": float(model.blocks[0].skip_lam),
        "stem": int(model.patch_embed.conv1.out_channels),
        "image_size": int(model.patch_embed.img_size[0]),
        "classes": int(model.head.out_features),
    }
