"""torchvision's Vision Transformers made by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.error import URLError

import torchvision
from torch import Tensor, nn
from torchvision.models import get_model

from .published import REMEMBERED, entry, names


def create(
    name: str, pretrained: bool, *, classes: int | None = None, size: int | None = None
) -> nn.Module:
    """`vit_b_16`, or with the tag of its weights, at their size: `vit_l_16.imagenet1k_v1`."""
    architecture, _, tag = name.partition(".")
    if architecture not in names():
        raise ValueError(
            f"unknown model {name!r}: the Vision Transformers of torchvision "
            f"{torchvision.__version__} are {', '.join(names())}"
        )
    weights = entry(architecture, tag)
    if pretrained and classes is not None:
        raise ValueError(
            f"the published weights of {name} have their own head: leave --classes out"
        )
    if pretrained:
        try:
            model: Any = get_model(architecture, weights=weights, progress=False)
        except URLError as error:
            raise ValueError(
                f"the pretrained weights of {name} cannot be fetched: {error.reason}; "
                "give a local file with --weights"
            ) from None
    else:
        shape = {"image_size": size or weights.meta["min_size"][0]}
        model = get_model(architecture, num_classes=classes or 1000, **shape)
    setattr(model, REMEMBERED, weights)
    made: nn.Module = model
    return made


def shape_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """How a model is to be made that takes these weights."""
    shape: dict[str, Any] = {}
    if "heads.head.weight" in state:
        shape["classes"] = state["heads.head.weight"].shape[0]
    stem, positions = state.get("conv_proj.weight"), state.get("encoder.pos_embedding")
    if stem is not None and positions is not None:
        shape["size"] = math.isqrt(positions.shape[1] - 1) * stem.shape[-1]
    return shape
