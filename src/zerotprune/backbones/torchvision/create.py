"""torchvision's Vision Transformers by name or from a folder: create, read, write.

The config of a folder is ours, as torchvision has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torchvision
from torch import Tensor, nn
from torchvision.models import (
    VisionTransformer,
    WeightsEnum,
    get_model,
    get_model_weights,
    list_models,
)

from ..storing import CONFIG, read_by_arguments, write_by_arguments

#: the attribute in which a model that was created by name keeps its published weights
ENTRY = "zerotprune_weights"


def create(
    name: str, pretrained: bool, *, classes: int | None = None, size: int | None = None
) -> nn.Module:
    """Create a torchvision Vision Transformer.

    Args:
        name: `vit_b_16`, or with the tag of its weights, at their size: `vit_l_16.imagenet1k_v1`.
        pretrained: Load the published weights.
        classes: The number of classes; 1000 by default.
        size: The side of the images in pixels.
    """
    architecture, _, tag = name.partition(".")
    if architecture not in _names():
        raise ValueError(
            f"unknown model {name!r}: the Vision Transformers of torchvision "
            f"{torchvision.__version__} are {', '.join(_names())}"
        )
    weights = _entry(architecture, tag)
    if pretrained and classes is not None:
        raise ValueError(f"the published weights of {name} include a head: leave --classes out")
    if pretrained:
        try:
            model: Any = get_model(architecture, weights=weights, progress=False)
        except URLError as error:
            raise ValueError(
                f"cannot fetch the pretrained weights of {name}: {error.reason}; "
                "give a local file with --weights"
            ) from None
    else:
        shape = {"image_size": size or weights.meta["min_size"][0]}
        model = get_model(architecture, num_classes=classes or 1000, **shape)
    setattr(model, ENTRY, weights)
    vit: nn.Module = model
    return vit


def shape_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options of `create` that fit these weights."""
    shape: dict[str, Any] = {}
    if "heads.head.weight" in state:
        shape["classes"] = state["heads.head.weight"].shape[0]
    stem, positions = state.get("conv_proj.weight"), state.get("encoder.pos_embedding")
    if stem is not None and positions is not None:
        shape["size"] = math.isqrt(positions.shape[1] - 1) * stem.shape[-1]
    return shape


def entry_of(model: Any) -> WeightsEnum:
    """Return the published weights that the model was created for, or those of a model of its
    shape and size; else those of vit_b_16, for their preprocessing."""
    if ENTRY in model.__dict__:
        entry: WeightsEnum = model.__dict__[ENTRY]
        return entry
    name = name_of(model)
    if not name:
        return _entry("vit_b_16")
    entries = get_model_weights(name)
    of_size = [entry for entry in entries if entry.meta["min_size"][0] == model.image_size]
    return of_size[0] if of_size else _entry(name)


def name_of(model: Any) -> str:
    """Return torchvision's name of a model of this shape; "" if it has none."""
    shape = (len(model.encoder.layers), model.hidden_dim)
    letter = {(12, 768): "b", (24, 1024): "l", (32, 1280): "h"}.get(shape)
    name = f"vit_{letter}_{model.patch_size}"
    return name if name in _names() else ""


def _names() -> list[str]:
    return list(list_models(include="vit_*"))


def _entry(name: str, tag: str = "") -> WeightsEnum:
    """Return the published weights of that tag, or the first that torchvision lists."""
    entries = list(get_model_weights(name))
    matches = [entry for entry in entries if entry.name.lower() == tag.lower()] if tag else entries
    if not matches:
        tags = ", ".join(entry.name.lower() for entry in entries)
        raise ValueError(f"torchvision has no weights {tag!r} for {name}: give one of {tags}")
    return matches[0]


def entry_named(name: str) -> WeightsEnum:
    """Return published weights by their name, such as `ViT_B_16_Weights.IMAGENET1K_V1`."""
    entries = (entry for model in _names() for entry in get_model_weights(model))
    matches = [entry for entry in entries if f"{type(entry).__name__}.{entry.name}" == name]
    if not matches:
        raise ValueError(f"torchvision {torchvision.__version__} has no weights {name!r}")
    return matches[0]


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: A torchvision model.
        folder: The folder to write to.
        config: The arguments of `VisionTransformer`, if they cannot be read off the model.
    """
    entry = entry_of(model)
    write_by_arguments(
        model, VisionTransformer, config or _arguments(model), folder,
        preprocessing=f"{type(entry).__name__}.{entry.name}",
    )  # fmt: skip


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model of a folder, with or without its weights."""
    model, config = read_by_arguments(folder, VisionTransformer, weights)
    try:
        entry = entry_named(str(config.get("preprocessing")))
    except Exception as error:  # the name is untrusted and can raise anything
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
