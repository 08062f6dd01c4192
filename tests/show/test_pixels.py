"""Tensors as images: the transform undone, heat maps, data URLs."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.show.pixels import LARGEST, as_image, heat_map, heat_map_url, photo_url


@pytest.mark.parametrize("name", ["demo", "deit_tiny_patch16_224", "vit_base_patch16_siglip_224"])
def test_as_image_undoes_the_transform(name: str) -> None:
    with torch.device("meta"):
        model = demo.untrained() if name == "demo" else timm.create_model(name)
    side = 112 if name == "demo" else 224
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    held = (
        backbone(model)
        .transform()
        .transforms[-1](  # type: ignore[attr-defined]  # normalisation alone
            torch.from_numpy(pixels).permute(2, 0, 1) / 255
        )
    )
    np.testing.assert_array_equal(np.asarray(as_image(held, model)), pixels)


def test_heat_is_bright_where_importance_is_high() -> None:
    values = torch.tensor([[0.01, 0.2, 1.0, 5.0, 50.0, torch.nan]])
    pixels = np.asarray(heat_map(values))[0].astype(int)
    lightness = pixels @ (299, 587, 114)
    assert lightness[0] == lightness[1] < lightness[2] < lightness[3] == lightness[4]
    assert pixels[5].min() > 200  # where there is no patch it is nearly white


def opened(url: str, kind: str) -> Image.Image:
    start = f"data:image/{kind};base64,"
    assert url.startswith(start)
    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix(start), validate=True)))


def test_urls_hold_the_image() -> None:
    photo = Image.effect_noise((900, 300), 20).convert("RGB")
    held = opened(photo_url(photo), "jpeg")
    assert held.size == (LARGEST, round(LARGEST / 3))
    assert photo.size == (900, 300)
    values = torch.rand(5, 7) * 3
    exact = opened(heat_map_url(values), "png")
    np.testing.assert_array_equal(np.asarray(exact), np.asarray(heat_map(values)))
