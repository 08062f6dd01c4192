"""Tensors as images to look at: what the model was shown, and heat maps; images as data URLs."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..backbones import backbone
from ..shapes import Float
from .palette import GONE, HEAT, rgb

REACH = 5.0  # heat maps tell importance apart from a fifth of the mean to five times it
LARGEST = 448  # pixels: photographs are embedded no larger than this


def as_image(
    values: Float[Tensor, "3 height width"], model: nn.Module | None = None
) -> Image.Image:
    """What the model was shown, as an image to look at: its normalisation undone."""
    even = (0.5, 0.5, 0.5)
    mean, std = (
        torch.tensor(tuple(channels), dtype=torch.float32)
        for channels in ((even, even) if model is None else backbone(model).normalization)
    )
    shown = values.detach().float().cpu() * std[:, None, None] + mean[:, None, None]
    pixels = (shown.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def heat_map(values: Float[Tensor, "rows cols"], reach: float = REACH) -> Image.Image:
    """Importance with a pixel for each patch, on a logarithmic scale about 1."""
    place = (1 + np.log(np.clip(values.numpy(), 1 / reach, reach)) / np.log(reach)) / 2
    seen = np.isfinite(place)
    stops = np.array([rgb(colour) for colour in HEAT], np.float32)
    at = np.where(seen, place, 0.0) * (len(stops) - 1)
    mixed = np.stack(
        [np.interp(at, np.arange(len(stops)), stops[:, each]) for each in range(3)], axis=-1
    )
    mixed[~seen] = rgb(GONE)
    return Image.fromarray(mixed.round().astype(np.uint8))


def heat_scale(reach: float = REACH) -> Float[Tensor, "1 64"]:
    """Values whose heat map is all of its colours in a row."""
    return reach ** torch.linspace(-1, 1, 64)[None]


def photo_url(image: Image.Image) -> str:
    """A photograph as a data URL: no file beside, no second request."""
    held, buffer = image.convert("RGB"), io.BytesIO()
    held.thumbnail((LARGEST, LARGEST))
    held.save(buffer, "JPEG", quality=90, subsampling=0, optimize=True)
    return _url("jpeg", buffer)


def heat_map_url(values: Float[Tensor, "rows cols"], reach: float = REACH) -> str:
    """A heat map as a data URL, without loss."""
    buffer = io.BytesIO()
    heat_map(values, reach).save(buffer, "PNG", optimize=True)
    return _url("png", buffer)


def _url(kind: str, buffer: io.BytesIO) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
