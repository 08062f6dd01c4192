"""torchvision's Vision Transformers in a folder, with a config of ours: torchvision has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.models import VisionTransformer

from ..storing import CONFIG, read_by_arguments, write_by_arguments
from .create import ENTRY, entry_named, entry_of


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: A torchvision model.
        folder: Where to.
        config: The arguments of `VisionTransformer`, if they cannot be told from the model.
    """
    entry = entry_of(model)
    write_by_arguments(
        model, VisionTransformer, config or _arguments(model), folder,
        preprocessing=f"{type(entry).__name__}.{entry.name}",
    )  # fmt: skip


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model that a folder holds, with or without its weights."""
    model, config = read_by_arguments(folder, VisionTransformer, weights)
    try:
        entry = entry_named(str(config.get("preprocessing")))
    except Exception as error:  # a stranger's name may fail in any way
        raise ValueError(
            f"torchvision has no preprocessing by the name in {folder / CONFIG}: {error}"
        ) from None
    setattr(model, ENTRY, entry)
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
