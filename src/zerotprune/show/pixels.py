"""Tensors as images to look at: what the model was shown, and heat maps; images as data URLs."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from ..backbones import backbone
from ..shapes import Float
from .palette import GONE, HEAT, rgb

REACH = 5.0  # heat maps tell importance apart from a fifth of the mean to five times it
LARGEST = 448  # pixels: photographs are embedded no larger than this


def as_image(
    values: Float[Tensor, "3 height width"], model: nn.Module | None = None
) -> Image.Image:
    """What the model was shown, as an image to look at: its normalisation undone."""
    pixels = (_undo_normalization(values, model) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def patch_colours(
    values: Float[Tensor, "3 height width"], grid: tuple[int, int], model: nn.Module | None = None
) -> Float[Tensor, "rows cols 3"]:
    """The mean colour of each patch of what the model was shown, from 0 to 1."""
    pooled: Tensor = adaptive_avg_pool2d(_undo_normalization(values, model), grid)
    return pooled.permute(1, 2, 0)


def _undo_normalization(values: Tensor, model: nn.Module | None) -> Tensor:
    undone = ((0.5,) * 3, (0.5,) * 3) if model is None else backbone(model).normalization
    mean, std = torch.tensor(undone, dtype=torch.float32)[..., None, None]
    shown: Tensor = values.detach().float().cpu() * std + mean
    return shown.clamp(0, 1)


def heat_map(values: Float[Tensor, "rows cols"], reach: float = REACH) -> Image.Image:
    """Importance with a pixel for each patch, on a logarithmic scale about 1."""
    place = (1 + np.log(np.clip(values.numpy(), 1 / reach, reach)) / np.log(reach)) / 2
    seen = np.isfinite(place)
    at = np.where(seen, place, 0.0) * (len(HEAT) - 1)
    channels = zip(*map(rgb, HEAT), strict=True)
    mixed = np.stack([np.interp(at, range(len(HEAT)), each) for each in channels], axis=-1)
    mixed[~seen] = rgb(GONE)
    return Image.fromarray(mixed.round().astype(np.uint8))


def heat_scale(reach: float = REACH) -> Float[Tensor, "1 64"]:
    """Values whose heat map is all of its colours in a row."""
    return reach ** torch.linspace(-1, 1, 64)[None]


def photo_url(image: Image.Image) -> str:
    """A photograph as a data URL: no file beside, no second request."""
    held = image.convert("RGB")
    held.thumbnail((LARGEST, LARGEST))
    return _url(held, "jpeg", quality=90, subsampling=0)


def heat_map_url(values: Float[Tensor, "rows cols"], reach: float = REACH) -> str:
    """A heat map as a data URL, without loss."""
    return _url(heat_map(values, reach), "png")


def _url(image: Image.Image, kind: str, **how: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **how)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
