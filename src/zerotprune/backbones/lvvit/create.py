"""LV-ViT by its names: lvvit_t, lvvit_s, lvvit_m, lvvit_l."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

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
        name: a key of `SIZES`.
        pretrained: refused, as no library carries the weights.
        classes: the number of classes; 1000 by default.
        size: the side of the images in pixels; 224 by default.
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
    """Return the options for `create` by which a model takes these weights."""
    shape: dict[str, Any] = {}
    if "head.weight" in state:
        shape["classes"] = state["head.weight"].shape[0]
    if "pos_embed" in state:
        shape["size"] = math.isqrt(state["pos_embed"].shape[1] - 1) * Stem.PATCH
    return shape
