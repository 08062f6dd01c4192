"""LV-ViT in a folder: no library reads it, the config is ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..storing import read_by_arguments, write_by_arguments
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
    write_by_arguments(model, LVViT, config or _arguments(model), folder)


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model that a folder holds, with or without its weights."""
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
