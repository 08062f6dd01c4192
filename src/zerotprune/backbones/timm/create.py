"""Create timm's models by name, and plain ones by shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import timm
from timm.models import VisionTransformer
from torch import Tensor, nn

from .. import refuse_unreachable
from ..storing import on_meta


def create(
    name: str,
    pretrained: bool,
    *,
    classes: int | None = None,
    pool: str | None = None,
    size: int | None = None,
) -> nn.Module:
    """Create a timm model.

    Args:
        name: timm's name, with or without the tag of its weights.
        pretrained: Load timm's weights.
        classes: The number of classes; default: that of the model.
        pool: How the head pools, as timm's `global_pool`.
        size: The side of the images in pixels.
    """
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"unknown model {name!r}: timm {timm.__version__} has no such model")
    try:
        if pretrained:
            _refuse_unreachable(name)
        if size is not None and _has_as_many_patches(name, size):
            size = None
        # timm ignores options that are None.
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=classes, global_pool=pool, img_size=size
        )
    except RuntimeError as error:
        raise ValueError(f"timm cannot create {name!r}: {error}") from None
    except AssertionError:  # without a message
        if pool is None:
            raise
        raise ValueError(f"timm cannot create {name!r} with --pool {pool}") from None
    return model


def _has_as_many_patches(name: str, size: int) -> bool:
    """Return whether an image of this side has as many patches as the model, filled or not."""
    with on_meta():
        embed: Any = timm.create_model(name).patch_embed
    return bool(embed.grid_size == tuple(size // side for side in embed.patch_size))


def shape_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options of `create` that fit these weights."""
    head, side = state.get("head.weight"), _side(state)
    shape = {} if head is None else {"classes": head.shape[0]}
    return shape if side is None else shape | {"size": side}


def _side(state: Mapping[str, Tensor]) -> int | None:
    """Return the side of the images that learned positions of a square grid are for."""
    positions, stem = state.get("pos_embed"), state.get("patch_embed.proj.weight")
    if positions is None or stem is None or positions.dim() != 3 or stem.dim() != 4:
        return None
    if any(name.startswith("patch_embed.backbone.") for name in state):
        return None  # its patches are made of convolutional features
    patch, names = stem.shape[-1], ("cls_token", "dist_token", "reg_token")
    prefix = sum(state[name].shape[1] for name in names if name in state)
    for positioned in (prefix, 1, 0):  # some models have no positions for some of these
        count = positions.shape[1] - positioned
        if count > 0 and math.isqrt(count) ** 2 == count:
            return math.isqrt(count) * patch
    return None


def _refuse_unreachable(name: str) -> None:
    config = timm.models.get_pretrained_cfg(name)
    if config is not None and config.hf_hub_id:
        refuse_unreachable(name, config.hf_hub_id, ("model.safetensors", "pytorch_model.bin"))


def build(label_names: Sequence[str], **shape: Any) -> nn.Module:
    """Create a plain Vision Transformer with random weights, its input in [-1, 1].

    Args:
        label_names: The names of its classes.
        shape: As timm's `VisionTransformer` takes it.
    """
    model: Any = VisionTransformer(**shape)
    half = (0.5, 0.5, 0.5)
    size = (3, *model.patch_embed.img_size)
    model.pretrained_cfg = {
        "mean": half, "std": half, "crop_pct": 1.0, "input_size": size, "label_names": label_names,
    }  # fmt: skip
    vit: nn.Module = model
    return vit
