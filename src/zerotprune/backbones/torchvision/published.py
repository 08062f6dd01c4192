"""What torchvision has published of a Vision Transformer: names, weights, their preprocessing."""

from __future__ import annotations

from typing import Any

from torchvision.models import WeightsEnum, get_model_weights, list_models

#: what a model that was made by name remembers of it
REMEMBERED = "zerotprune_weights"


def names() -> list[str]:
    return list(list_models(include="vit_*"))


def entry(name: str, tag: str = "") -> WeightsEnum:
    """The published weights of that tag; without one, the first that torchvision lists."""
    weights = list(get_model_weights(name))
    found = [each for each in weights if each.name.lower() == tag.lower()] if tag else weights[:1]
    if not found:
        tags = ", ".join(each.name.lower() for each in weights)
        raise ValueError(f"torchvision has no weights {tag!r} of {name}: give one of {tags}")
    return found[0]


def entry_of(model: Any) -> WeightsEnum:
    """The weights that the model was made for, or that a model of its shape and size has. What is
    like none of them is taken for a vit_b_16: its preprocessing is the usual one."""
    if REMEMBERED in model.__dict__:
        remembered: WeightsEnum = model.__dict__[REMEMBERED]
        return remembered
    name = name_of(model)
    if not name:
        return entry("vit_b_16")
    of_size = [w for w in get_model_weights(name) if w.meta["min_size"][0] == model.image_size]
    return of_size[0] if of_size else entry(name)


def name_of(model: Any) -> str:
    """torchvision's name of a model of this shape; "" if it has none."""
    shape = (len(model.encoder.layers), model.hidden_dim)
    letter = {(12, 768): "b", (24, 1024): "l", (32, 1280): "h"}.get(shape)
    name = f"vit_{letter}_{model.patch_size}"
    return name if name in names() else ""
