"""The transform of each model: its size, its colors, and DeiT's by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.data.images import check_classes, open_data


def test_the_demo_model_sees_its_own_range() -> None:
    noise = torch.randint(0, 256, (112, 112, 3), dtype=torch.uint8)
    seen = backbone(demo.untrained()).transform()(Image.fromarray(noise.numpy()))
    torch.testing.assert_close(seen, noise.permute(2, 0, 1) / 127.5 - 1)
    vit, image = backbone(demo.untrained()), Image.new("RGB", (300, 200))
    assert vit.transform()(image).shape == (3, 112, 112)
    assert vit.transform(64)(image).shape == (3, 64, 64)


def test_the_transform_follows_the_size_the_model_has_now() -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch14_dinov2.lvd142m", img_size=224, depth=1)
    assert backbone(model).transform()(Image.new("RGB", (300, 400))).shape == (3, 224, 224)
    assert backbone(model).transform(98)(Image.new("RGB", (300, 400))).shape == (3, 98, 98)


def test_transforms_are_those_of_each_model() -> None:
    white = Image.new("RGB", (300, 400), (255, 255, 255))
    with torch.device("meta"):
        deit = timm.create_model("deit_tiny_patch16_224")
        augreg = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert backbone(augreg).transform()(white)[:, 0, 0].tolist() == [1, 1, 1]
    wanted = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert backbone(deit).transform()(white)[:, 0, 0].tolist() == pytest.approx(wanted)


def for_deit(image: Image.Image, resized: tuple[int, int]) -> Any:
    """Apply DeiT's transform by hand: shorter side to 248, center crop of 224, ImageNet's
    colors."""
    left, top = (resized[0] - 224) // 2, (resized[1] - 224) // 2
    shown = image.resize(resized, Image.Resampling.BICUBIC)
    values = np.asarray(shown.crop((left, top, left + 224, top + 224)), dtype=np.float64) / 255
    return ((values - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)


def test_the_transform_of_deit_by_hand() -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224")
    noise = torch.randint(0, 256, (400, 300, 3), dtype=torch.uint8).numpy()
    actual = backbone(model).transform()(Image.fromarray(noise))
    wanted = for_deit(Image.fromarray(noise), (248, 330))
    np.testing.assert_allclose(actual.numpy(), wanted, atol=1e-5)


def test_real_images(shared: Path) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224")
    images = open_data(shared / "imagenet" / "tune", transform=backbone(model).transform())
    assert (images.classes, len(images)) == (1000, 1000)
    check_classes(images, 1000)
    image, label = images[500]
    assert label == 500
    with Image.open(images.paths[500]) as opened:
        shown = opened.convert("RGB")
    np.testing.assert_allclose(image.numpy(), for_deit(shown, (248, 248)), atol=1e-5)
