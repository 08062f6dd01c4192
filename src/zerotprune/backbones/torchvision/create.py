"""torchvision's Vision Transformers by name: create them, look up their published weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.error import URLError

import torchvision
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_model, get_model_weights, list_models

#: the attribute in which a model that was created by name keeps its weights' entry
ENTRY = "zerotprune_weights"


def create(
    name: str, pretrained: bool, *, classes: int | None = None, size: int | None = None
) -> nn.Module:
    """Create a torchvision Vision Transformer.

    Args:
        name: `vit_b_16`, or with the tag of its weights, at their size: `vit_l_16.imagenet1k_v1`.
        pretrained: load the published weights.
        classes: the number of classes; 1000 by default.
        size: the side of the images in pixels.
    """
    architecture, _, tag = name.partition(".")
    if architecture not in _names():
        raise ValueError(
            f"unknown model {name!r}: the Vision Transformers of torchvision "
            f"{torchvision.__version__} are {', '.join(_names())}"
        )
    weights = _entry(architecture, tag)
    if pretrained and classes is not None:
        raise ValueError(
            f"the published weights of {name} have their own head: leave --classes out"
        )
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
    """Return the options for `create` by which a model takes these weights."""
    shape: dict[str, Any] = {}
    if "heads.head.weight" in state:
        shape["classes"] = state["heads.head.weight"].shape[0]
    stem, positions = state.get("conv_proj.weight"), state.get("encoder.pos_embedding")
    if stem is not None and positions is not None:
        shape["size"] = math.isqrt(positions.shape[1] - 1) * stem.shape[-1]
    return shape


def entry_of(model: Any) -> WeightsEnum:
    """Return the published weights that the model was created for, or those of a model of its
    shape and size. A model of no published shape gets the preprocessing of vit_b_16, the usual
    one."""
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
    entries = (entry for each in _names() for entry in get_model_weights(each))
    found = [entry for entry in entries if f"{type(entry).__name__}.{entry.name}" == name]
    if not found:
        raise ValueError(f"torchvision {torchvision.__version__} has no weights {name!r}")
    return found[0]
