"""timm's models made by name, and a plain one made by its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import timm
from timm.models import VisionTransformer
from torch import Tensor, nn

from ..hub import refuse_unreachable


def create(
    name: str, pretrained: bool, *, classes: int | None = None, pool: str | None = None
) -> nn.Module:
    """A model of timm's in the state in which timm makes it; with another head if one is named."""
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"unknown model {name!r}: timm {timm.__version__} has none of that name")
    try:
        if pretrained:
            _refuse_unreachable(name)
        # timm leaves out of the options what is None.
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=classes, global_pool=pool
        )
    except RuntimeError as error:
        raise ValueError(f"timm cannot make {name!r}: {error}") from None
    except AssertionError:  # it says nothing of the reason
        if pool is None:
            raise
        raise ValueError(f"timm cannot make {name!r} with a head that pools by {pool!r}") from None
    return model


def shape_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """How a model is to be made that takes these weights."""
    head = state.get("head.weight")
    return {} if head is None else {"classes": head.shape[0]}


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
