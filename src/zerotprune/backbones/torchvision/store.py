"""torchvision's Vision Transformers in a folder, with a config of ours: torchvision has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models import VisionTransformer

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
from .create import ENTRY, entry_named, entry_of


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: A torchvision model.
        folder: Where to.
        config: The arguments of `VisionTransformer`, if they cannot be told from the model.
    """
    args = _arguments(model) if config is None else dict(config)
    with torch.device("meta"):
        twin = VisionTransformer(**args)
    if found := difference(model, twin):
        raise ValueError(
            f"cannot tell how this VisionTransformer was created, as with {args} {found}: give its "
            "arguments, config={…}"
        )
    entry = entry_of(model)
    weights = f"{type(entry).__name__}.{entry.name}"
    write_config(
        folder / CONFIG, {"class": "VisionTransformer", "args": args, "preprocessing": weights}
    )
    write_weights(folder / WEIGHTS, own_state(model))


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model that a folder holds, with or without its weights."""
    config = read_config(folder / CONFIG)
    args = config.get("args")
    if config.get("class") != "VisionTransformer" or not isinstance(args, dict):
        raise ValueError(f"{folder / CONFIG} is not the config of a torchvision VisionTransformer")
    try:
        model: nn.Module = VisionTransformer(**args)
        entry = entry_named(str(config.get("preprocessing")))
    except Exception as error:  # a stranger's arguments may fail in any way
        raise ValueError(
            f"torchvision cannot create the model of {folder / CONFIG}: {error}"
        ) from None
    setattr(model, ENTRY, entry)
    if weights:
        fill(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    return model


def _arguments(model: Any) -> dict[str, Any]:
    head = getattr(model.heads, "head", None)
    return {
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_layers": len(model.encoder.layers),
        "num_heads": model.encoder.layers[0].num_heads,
        "hidden_dim": model.hidden_dim,
        "mlp_dim": model.mlp_dim,
        "num_classes": int(getattr(head, "out_features", model.num_classes)),
        "representation_size": model.representation_size,
    }
