"""timm's models made by name, and a plain one made by its shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from ..hub import refuse_unreachable


def create(
    name: str,
    pretrained: bool,
    *,
    classes: int | None = None,
    pool: str | None = None,
    size: int | None = None,
) -> nn.Module:
    """A model of timm's in the state in which timm makes it; with another head if one is named."""
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"unknown model {name!r}: timm {timm.__version__} has none of that name")
    try:
        if pretrained:
            _refuse_unreachable(name)
        if size is not None and _has_as_many_patches(name, size):
            size = None
        # timm leaves out of the options what is None.
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=classes, global_pool=pool, img_size=size
        )
    except RuntimeError as error:
        raise ValueError(f"timm cannot make {name!r}: {error}") from None
    except AssertionError:  # it says nothing of the reason
        if pool is None:
            raise
        raise ValueError(f"timm cannot make {name!r} with a head that pools by {pool!r}") from None
    return model


def _has_as_many_patches(name: str, size: int) -> bool:
    """As many in images of this side as in the model's own, which patches need not fill?"""
    with torch.device("meta"):
        embed: Any = timm.create_model(name).patch_embed
    return bool(embed.grid_size == tuple(size // side for side in embed.patch_size))


def shape_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """How a model is to be made that takes these weights."""
    head, side = state.get("head.weight"), _side(state)
    shape = {} if head is None else {"classes": head.shape[0]}
    return shape if side is None else shape | {"size": side}


def _side(state: Mapping[str, Tensor]) -> int | None:
    """Of the images that the positions are for, where they are learned for patches of a square."""
    positions, stem = state.get("pos_embed"), state.get("patch_embed.proj.weight")
    if positions is None or stem is None or positions.dim() != 3 or stem.dim() != 4:
        return None
    if any(name.startswith("patch_embed.backbone.") for name in state):
        return None  # its patches are of a convolutional network's features
    patch, prefixes = stem.shape[-1], ("cls_token", "dist_token", "reg_token")
    prefix = sum(state[each].shape[1] for each in prefixes if each in state)
    for counted in (prefix, 1, 0):  # some models have no positions for some of these
        count = positions.shape[1] - counted
        if count > 0 and math.isqrt(count) ** 2 == count:
            return math.isqrt(count) * patch
    return None


def _refuse_unreachable(name: str) -> None:
    config = timm.models.get_pretrained_cfg(name)
    if config is not None and config.hf_hub_id:
        refuse_unreachable(name, config.hf_hub_id, ("model.safetensors", "pytorch_model.bin"))


def build(label_names: Sequence[str], **shape: Any) -> nn.Module:
    """A plain Vision Transformer with fresh weights, its input in [-1, 1]."""
    model: Any = VisionTransformer(**shape)
    even = (0.5, 0.5, 0.5)
    size = (3, *model.patch_embed.img_size)
    model.pretrained_cfg = {
        "mean": even, "std": even, "crop_pct": 1.0, "input_size": size, "label_names": label_names,
    }  # fmt: skip
    plain: nn.Module = model
    return plain
