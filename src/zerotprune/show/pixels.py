"""Turn tensors into images: what the model saw, and heat maps; and images into data URLs."""

from __future__ import annotations

import base64
import io

import matplotlib
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from ..backbones import backbone
from ..shapes import Float

REACH = 5.0  # heat maps range from a fifth of the mean to five times the mean
LARGEST = 448  # pixels: photographs are embedded no larger than this
NO_PATCH = "#F2F2F2"  # the colour of a patch that is gone


def as_image(
    values: Float[Tensor, "3 height width"], model: nn.Module | None = None
) -> Image.Image:
    """Undo the model's normalisation to see what it saw."""
    pixels = (_undo_normalization(values, model) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def patch_colours(
    values: Float[Tensor, "3 height width"], grid: tuple[int, int], model: nn.Module | None = None
) -> Float[Tensor, "rows cols 3"]:
    """Return the mean colour of each patch that the model saw, from 0 to 1."""
    pooled: Tensor = adaptive_avg_pool2d(_undo_normalization(values, model), grid)
    return pooled.permute(1, 2, 0)


def _undo_normalization(values: Tensor, model: nn.Module | None) -> Tensor:
    normalization = ((0.5,) * 3, (0.5,) * 3) if model is None else backbone(model).normalization
    mean, std = torch.tensor(normalization, dtype=torch.float32)[..., None, None]
    pixels: Tensor = values.detach().float().cpu() * std + mean
    return pixels.clamp(0, 1)


def heat_map(values: Float[Tensor, "rows cols"], reach: float = REACH) -> Image.Image:
    """Colour importance, one pixel a patch, on a logarithmic scale around 1."""
    level = (1 + np.log(np.clip(values.numpy(), 1 / reach, reach)) / np.log(reach)) / 2
    # Cividis rises evenly in lightness and is safe for every kind of colour vision.
    colours = matplotlib.colormaps["cividis"].with_extremes(bad=NO_PATCH)
    return Image.fromarray(colours(np.ma.masked_invalid(level), bytes=True)[..., :3].copy())


def heat_scale(reach: float = REACH) -> Float[Tensor, "1 64"]:
    """Return values whose heat map is the whole range of colours in a row."""
    return reach ** torch.linspace(-1, 1, 64)[None]


def photo_url(image: Image.Image) -> str:
    """Encode a photograph as a data URL, as JPEG."""
    small = image.convert("RGB")
    small.thumbnail((LARGEST, LARGEST))
    return _url(small, "jpeg", quality=90, subsampling=0)


def heat_map_url(values: Float[Tensor, "rows cols"], reach: float = REACH) -> str:
    """Encode a heat map as a data URL, without loss."""
    return _url(heat_map(values, reach), "png")


def _url(image: Image.Image, kind: str, **options: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
