"""The real DeiT-Ti and ViT-Ti: pruned logits against a plain float64 computation in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import zerotprune as ztp
from tests.oracle import vit_logits
from zerotprune.tracing import Fate

MODELS = {
    "deit_tiny_patch16_224": "deit_tiny_patch16_224.safetensors",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "vit_tiny_patch16_224.augreg.safetensors",
}


def real_model(shared: Path, name: str) -> Any:
    model = timm.create_model(name)
    weights = load_file(shared / "weights" / MODELS[name])
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    return model.eval()


def real_images(shared: Path, model: Any, count: int) -> Tensor:
    config = timm.data.resolve_data_config(model=model)
    transform = timm.data.create_transform(**config)
    folders = sorted((shared / "imagenet" / "tune").iterdir())
    paths = [next(folder.iterdir()) for folder in folders[:: len(folders) // count][:count]]
    images = []
    for path in paths:
        with Image.open(path) as image:
            images.append(transform(image.convert("RGB")))
    return torch.stack(images)


@pytest.mark.parametrize("preset", ["ablation-is", "ablation-i", "zero-tp-b"])
@pytest.mark.parametrize("name", MODELS)
def test_pruned_logits_equal_the_plain_float64_computation(
    shared: Path, name: str, preset: str
) -> None:
    model = real_model(shared, name).double()
    images = real_images(shared, model, 2).double()
    schedule = ztp.Schedule.preset(preset)
    ztp.prune_(model, schedule)
    with torch.inference_mode():
        logits = model(images)
    traces = ztp.trace(model, images)
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    stages = {
        stage.block: {"keep": stage.keep, "similar": stage.similar, "rounds": stage.votes(12)}
        for stage in schedule.stages
    }
    for at, image in enumerate(images):
        expected, layers = vit_logits(weights, image.numpy(), heads=3, stages=stages)
        np.testing.assert_allclose(logits[at].numpy(), expected, rtol=1e-8, atol=1e-8)
        for trace in traces:
            layer = layers[trace.block]
            assert trace.where(Fate.KEPT)[at] == sorted(layer.kept.tolist())
            assert trace.where(Fate.SIMILAR)[at] == sorted(layer.similar.tolist())
            for dropped, partner in zip(layer.similar, layer.partner, strict=True):
                assert trace.partner[at, dropped] == partner


@pytest.mark.parametrize("name", MODELS)
def test_float32_keeps_the_same_tokens_as_float64(shared: Path, name: str) -> None:
    model = real_model(shared, name)
    images = real_images(shared, model, 16)
    ztp.prune_(model, ztp.Schedule.preset("ablation-is"))
    narrow = ztp.trace(model, images)[-1].fate == Fate.KEPT
    wide = ztp.trace(model.double(), images.double())[-1].fate == Fate.KEPT
    # Rounding may swap tokens that are tied to the last digits; it may not do more.
    assert (narrow != wide).float().mean() < 0.002


@pytest.mark.parametrize("name", MODELS)
def test_the_exact_last_block_gives_the_same_logits(shared: Path, name: str) -> None:
    model = real_model(shared, name)
    images = real_images(shared, model, 4)
    schedule = ztp.Schedule.preset("ablation-is")
    with torch.inference_mode():
        whole = ztp.prune_(model, schedule, compute="all")(images)
        exact = ztp.prune_(model, schedule)(images)
    assert "forward" in model.__dict__
    torch.testing.assert_close(exact, whole, rtol=0, atol=1e-4)


def test_dinov2_with_layer_scale(shared: Path) -> None:
    model = timm.create_model("vit_small_patch14_dinov2.lvd142m", img_size=518)
    weights = load_file(shared / "weights" / "vit_small_patch14_dinov2.lvd142m.safetensors")
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    model.set_input_size((224, 224))
    model = model.eval().double()
    image = real_images(shared, model, 1).double()
    image = torch.nn.functional.interpolate(image, size=(224, 224), mode="bicubic")
    schedule = ztp.schedule_for(model, cost=0.7, method="zero-tprune")
    ztp.prune_(model, schedule)
    with torch.inference_mode():
        actual = model(image)[0]
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    stages = {
        stage.block: {"keep": stage.keep, "similar": stage.similar, "rounds": stage.votes(12)}
        for stage in schedule.stages
    }
    expected, _ = vit_logits(state, image[0].numpy(), heads=6, stages=stages)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-8, atol=1e-8)
