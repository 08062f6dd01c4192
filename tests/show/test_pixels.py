"""Tensors as images: the transform undone, heat maps, data URLs."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from zerotprune import app
from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.show.html import TEMPLATE
from zerotprune.show.palette import ACCENT, COVER, HEAT, OTHER, PALE_COVER, PARTNERS, SAME, rgb
from zerotprune.show.pixels import (
    LARGEST,
    as_image,
    heat_map,
    heat_map_url,
    patch_colours,
    photo_url,
)


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


def test_the_accent_is_no_colour_of_a_patch() -> None:
    """Controls and progress must not look like a fate or like heat, on a page as in a file."""
    accent = np.array(rgb(ACCENT))
    marks = [colour for cover in (COVER, PALE_COVER) for colour, _ in cover.values()]
    for colour in (*marks, *HEAT, PARTNERS[-1][0], SAME, OTHER):
        assert np.linalg.norm(accent - np.array(rgb(colour))) > 60, colour
    styles = [Path(app.__file__).with_name("page.css"), TEMPLATE]
    for style in styles:
        text = style.read_text(encoding="utf-8").upper()
        assert f"--ACCENT: {ACCENT}" in text
        assert "ACCENT-COLOR: VAR(--ACCENT)" in text


def test_the_colour_of_a_patch_is_the_mean_of_its_pixels() -> None:
    model, image = demo.untrained(), demo.images(1, seed=3)[0][0]
    wanted = (image.double().numpy() + 1).reshape(3, 14, 8, 14, 8).mean(axis=(2, 4)) / 2
    colours = patch_colours(image, (14, 14), model)
    np.testing.assert_allclose(colours.permute(2, 0, 1).numpy(), wanted, atol=1e-6)
