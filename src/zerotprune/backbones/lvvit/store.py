"""LV-ViT in a folder: no library reads it, the config is ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..storing import (
    CONFIG,
    WEIGHTS,
    difference,
    fill,
    own_state,
    read_config,
    read_weights,
    write_config,
    write_weights,
)
from .model import LVViT


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: An `LVViT`.
        folder: Where to.
        config: The arguments of `LVViT`, if they cannot be told from the model.
    """
    if not isinstance(model, LVViT):
        raise TypeError(
            f"cannot save {type(model).__name__} of another package: load its weights into "
            "zerotprune.backbones.lvvit.LVViT, which has the same names"
        )
    args = _arguments(model) if config is None else dict(config)
    with torch.device("meta"):
        twin = LVViT(**args)
    if found := difference(model, twin):
        raise ValueError(
            f"cannot tell how this LVViT was created, as with {args} {found}: give its arguments, "
            "config={…}"
        )
    write_config(folder / CONFIG, {"class": "LVViT", "args": args})
    write_weights(folder / WEIGHTS, own_state(model))


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model that a folder holds, with or without its weights."""
    config = read_config(folder / CONFIG)
    args = config.get("args")
    if config.get("class") != "LVViT" or not isinstance(args, dict):
        raise ValueError(f"{folder / CONFIG} is not the config of an LVViT")
    try:
        model: nn.Module = LVViT(**args)
    except Exception as error:  # a stranger's arguments may fail in any way
        raise ValueError(f"cannot create the LVViT of {folder / CONFIG}: {error}") from None
    if weights:
        fill(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
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
