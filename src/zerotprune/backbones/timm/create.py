"""timm's models made by name, and a plain one made by its shape."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import timm
from timm.models import VisionTransformer
from torch import nn


def create(name: str, pretrained: bool) -> nn.Module:
    """A model of timm's in the state in which timm makes it."""
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"unknown model {name!r}: timm {timm.__version__} has none of that name")
    try:
        if pretrained:
            _refuse_unreachable(name)
        model: nn.Module = timm.create_model(name, pretrained=pretrained)
    except RuntimeError as error:
        raise ValueError(f"timm cannot make {name!r}: {error}") from None
    return model


def _refuse_unreachable(name: str) -> None:
    """Without a network timm tries again and again, for a minute: say at once what to do."""
    from huggingface_hub import constants, try_to_load_from_cache

    config = timm.models.get_pretrained_cfg(name)
    hub = None if config is None else config.hf_hub_id
    if not hub:
        return
    cached = any(
        isinstance(try_to_load_from_cache(hub, file), str)
        for file in ("model.safetensors", "pytorch_model.bin")
    )
    address = urlsplit(constants.ENDPOINT)
    try:
        if not cached:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        return  # somebody answers
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # the same: the hub's own client brings other certificates
        raise ValueError(
            f"the pretrained weights of {name} cannot be fetched: {address.hostname} cannot be "
            "reached; give a local file with --weights"
        ) from None


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
