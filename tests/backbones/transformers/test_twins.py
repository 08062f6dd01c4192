"""transformers beside timm with the same weights, and as it is named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import zerotprune as ztp
from benchmarks.convert_to_hf import convert, save
from tests.commands import quickly
from tests.families import SMALL, stirred
from tests.hf_families import build
from zerotprune.backbones import backbone
from zerotprune.data.models import load, outline
from zerotprune.data.weights import weights_hash


def twin(name: str) -> Any:
    options = SMALL | ({"num_classes": 0, "img_size": 84} if "dinov2" in name else {})
    model: nn.Module = timm.create_model(name, **options)
    return stirred(model).eval()


TWINS = ["deit_tiny_patch16_224", "vit_small_patch14_dinov2"]


@pytest.mark.parametrize("method", ["fold", "zero-tprune", "tome"])
@pytest.mark.parametrize("name", TWINS)
def test_the_same_tokens_and_answers_as_timm(name: str, method: str) -> None:
    one = twin(name)
    other = convert(one)
    assert backbone(one).geometry.blocks == backbone(other).geometry.blocks
    assert ztp.gmacs(one) == ztp.gmacs(other)
    images = torch.randn(3, *backbone(one).input_shape)
    cost = 0.71 if "dinov2" in name else 0.7  # which ToMe can meet with so few tokens
    schedule = ztp.schedule_for(one, cost=cost, method=method)
    assert ztp.schedule_for(other, cost=cost, method=method) == schedule
    for model in (one, other):
        ztp.prune_(model, schedule)
    for here, there in zip(ztp.trace(one, images), ztp.trace(other, images), strict=True):
        assert torch.equal(here.fate, there.fate)
    with torch.inference_mode():
        out = other(images)
        actual = out.pooler_output if "dinov2" in name else out.logits
        torch.testing.assert_close(actual, one(images), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = twin(TWINS[0])
    where = tmp_path_factory.mktemp("models") / "tiny"
    save(model, where)
    config = json.loads((where / "config.json").read_text())
    config["id2label"] = {str(at): f"kind {at}, of seven" for at in range(7)}
    (where / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), where.with_name("timm.safetensors"))
    return where


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for kind in range(7):
        (root / str(kind)).mkdir()
        pixels = rng.integers(0, 255, (100, 130, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / str(kind) / "one.png")
    return root


def test_evaluate_takes_a_folder(folder: Path, images: Path) -> None:
    done = quickly(
        "evaluate", "--model", f"hf:{folder}", "--data", str(images), "--cost", "0.7",
        "--workers", "0", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain, pruned = json.loads(done.stdout)
    assert plain["images"] == 7
    assert pruned["gmacs"] < 0.75 * plain["gmacs"]


def test_a_folder_brings_its_preprocessing_and_class_names(folder: Path, images: Path) -> None:
    model, other = load(f"hf:{folder}", pretrained=True), twin(TWINS[0])
    assert backbone(model).class_names()[:2] == ["kind 0", "kind 1"]
    assert backbone(model).name == "tiny"
    assert backbone(model).normalization == backbone(other).normalization
    with Image.open(images / "3" / "one.png") as image:
        ours, timm_s = (backbone(vit).transform()(image) for vit in (model, other))
        assert torch.equal(ours, timm_s)
        assert backbone(model).transform(48)(image).shape == (3, 48, 48)
    with torch.inference_mode():
        assert model(ours.unsqueeze(0)).shape == (1, 7)
    assert backbone(outline(f"hf:{folder}")).geometry == backbone(model).geometry


def test_weights_on_top_of_a_folder(folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    fresh = load(f"hf:{folder}")
    loaded = load(f"hf:{folder}", weights=weights)
    assert weights_hash(loaded) == weights_hash(load(f"hf:{folder}", pretrained=True))
    assert weights_hash(loaded) != weights_hash(fresh)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn"):
        load(f"hf:{folder}", weights=folder.with_name("timm.safetensors"))


def test_another_size_on_the_command_line(folder: Path) -> None:
    model = load(f"hf:{folder}", size=64)
    assert backbone(model).input_shape == (3, 64, 64)


def test_a_processor_without_a_crop(tmp_path: Path) -> None:
    """ViT's own processor resizes to height and width, whatever the image's shape."""
    build("vit").save_pretrained(tmp_path)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 96, "width": 96}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    vit = backbone(load(f"hf:{tmp_path}", pretrained=True))
    assert vit.transform()(Image.new("RGB", (50, 70))).shape == (3, 96, 96)
    assert vit.transform(64)(Image.new("RGB", (50, 70))).shape == (3, 64, 64)
    assert vit.class_names() == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "config.json"),
        ({"model_type": "swin", "architectures": ["SwinModel"]}, "SwinModel"),
        ({"model_type": "vit"}, "ViTConfig.*no architecture"),
        (
            {"model_type": "siglip2", "architectures": ["Siglip2Model"]},
            "Siglip2VisionModel.*Python",
        ),
        ({"model_type": "no such"}, "cannot read"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "cannot create"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path: Path, config: Any, message: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load(f"hf:{tmp_path}", pretrained=True)


def test_a_siglip_without_its_head_has_no_one_answer(tmp_path: Path) -> None:
    build("siglip, no head").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"SigLIP without a head.*Python") as raised:
        load(f"hf:{tmp_path}", pretrained=True)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder"):
        load(f"hf:{tmp_path / 'none'}", pretrained=True)


def test_a_name_on_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError

    monkeypatch.setattr("zerotprune.backbones.urlopen", refuse)
    with pytest.raises(ValueError, match=r"cannot be reached.*hf:FOLDER"):
        load("hf:someone/nothing", pretrained=True)


def test_a_base_model_has_no_classes(tmp_path: Path, images: Path) -> None:
    build("vit, base").save_pretrained(tmp_path)
    done = quickly("evaluate", f"hf:{tmp_path}", str(images), "--workers", "0")
    assert done.returncode == 2
    assert "has no head: give --probe and --train" in done.stderr
    probing = ("--probe", "knn", "--train", str(images), "--cost", "0.7", "--json")
    done = quickly("evaluate", f"hf:{tmp_path}", str(images), "--workers", "0", *probing)
    assert done.returncode == 0, done.stderr
    assert [row["measure"] for row in json.loads(done.stdout)] == ["knn", "knn"]


def test_weights_without_a_pooler_or_without_a_classifier(tmp_path: Path) -> None:
    """A pooler that was not published is left out; a classifier that is missing is refused."""
    build("vit").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["ViTModel"]}))
    model: Any = load(f"hf:{tmp_path}", pretrained=True)
    images = torch.randn(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(model(images), model[0](images).last_hidden_state[:, 0])
    build("vit, base").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="lack classifier"):
        load(f"hf:{tmp_path}", pretrained=True)
