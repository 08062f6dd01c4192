"""Models by their names on the command line: libraries, weights files, heads of another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from tests.commands import quickly
from zerotprune.backbones import backbone, create, own_weights, shape_in
from zerotprune.data.models import load, outline


def same_weights(model: Any, state: dict[str, torch.Tensor]) -> bool:
    weights = model.state_dict()
    return weights.keys() == state.keys() and all(
        torch.equal(weights[key], state[key]) for key in weights
    )


def test_lvvit_from_a_published_kind_of_checkpoint(tmp_path: Path) -> None:
    """It is wrapped, trained in parallel, with another number of classes, for larger images."""
    state = create("lvvit:lvvit_t", False, classes=10, size=64).state_dict()
    file = tmp_path / "lvvit.pth.tar"
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, file)
    model = load("lvvit:lvvit_t", weights=file)
    assert backbone(model).outputs == 10
    assert backbone(model).input_shape == (3, 64, 64)
    assert same_weights(model, state)
    with pytest.raises(ValueError, match=r"aux_head\.bias.*10"):
        load("lvvit:lvvit_t", weights=file, classes=7)
    assert backbone(load("lvvit:lvvit_t", weights=file, size=96)).geometry.grid == (6, 6)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_timm_head_of_another_size_and_pool(tmp_path: Path, pool: str) -> None:
    twin = timm.create_model("test_vit", num_classes=5, global_pool=pool)
    torch.save(twin.state_dict(), tmp_path / "w.pth")
    model: Any = load("test_vit", weights=tmp_path / "w.pth", pool=pool)
    assert (backbone(model).outputs, model.global_pool) == (5, pool)
    assert same_weights(model, twin.state_dict())
    assert backbone(load("test_vit", classes=3)).outputs == 3


def test_the_tower_of_a_whole_clip_file(tmp_path: Path) -> None:
    tower = create("open_clip:ViT-S-32", False)
    state = {f"visual.{key}": value for key, value in tower.state_dict().items()}
    torch.save(state | {"text_projection": torch.zeros(2, 2)}, tmp_path / "clip.pt")
    for file in ("clip.pt", "tower.pt"):
        torch.save(tower.state_dict(), tmp_path / "tower.pt")
        assert same_weights(load("open_clip:ViT-S-32", weights=tmp_path / file), tower.state_dict())


def test_torchvision_s_larger_images_from_the_file() -> None:
    name = "torchvision:vit_b_16"
    with torch.device("meta"):
        swag = create(f"{name}.imagenet1k_swag_e2e_v1", False, classes=12)
        shape = shape_in(name, own_weights(name, swag.state_dict()))
        made = create(name, False, **shape)
    assert shape == {"classes": 12, "size": 384}
    assert backbone(made).input_shape == (3, 384, 384)
    assert backbone(outline(name)).input_shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("torchvision:vit_b_17",), "are vit_b_16, vit_b_32, vit_h_14, vit_l_16, vit_l_32"),
        (("torchvision:vit_b_16.v9",), "give one of imagenet1k_v1"),
        (("torchvision:vit_b_16", "--pool", "avg"), "torchvision:vit_b_16 has no --pool"),
        (("open_clip:ViT-X",), "unknown model 'ViT-X': open_clip"),
        (("open_clip:ViT-B-32.x",), "such as ViT-B-32.openai"),
        (("lvvit:lvvit_x",), "LV-ViT comes as lvvit_t, lvvit_s, lvvit_m, lvvit_l"),
        (("nonsense:vit",), "or one with a prefix (torchvision:, open_clip:, lvvit:"),
        (("test_vit", "--pool", "sum"), "timm cannot create 'test_vit' with --pool"),
        (("demo", "--classes", "5"), "--classes is not for the built-in model"),
        (("open_clip:RN50",), "cannot prune open_clip's ModifiedResNet"),
    ],
)
def test_mistakes_get_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    done = quickly("info", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_what_needs_weights_says_so(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    done = quickly("evaluate", "lvvit:lvvit_s", str(tmp_path))
    assert done.returncode == 2
    assert "--weights" in done.stderr.replace("\n", " ")
    with pytest.raises(ValueError, match=r"ViT-B-32.*--weights"):
        create("open_clip:ViT-B-32", pretrained=True)
    with pytest.raises(ValueError, match="--classes"):
        create("torchvision:vit_b_16", pretrained=True, classes=3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("torchvision:vit_b_16.imagenet1k_swag_e2e_v1", "24 × 24 = 576"),
        ("open_clip:ViT-B-32", "and the last block's patch tokens"),
        ("open_clip:ViT-B-16-SigLIP", "its patch tokens are read"),
        ("lvvit:lvvit_s", "the last block is whole: its patch tokens are read"),
    ],
)
def test_info_of_every_library(model: str, message: str) -> None:
    done = quickly("info", model, "--cost", "0.6")
    assert done.returncode == 0, done.stderr
    assert message in " ".join(done.stdout.split())
