"""What a backbone says of its model, wrappers, and that nobody else asks a library's model."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import zerotprune as ztp
from tests.families import FAMILIES, build, images_for
from zerotprune.backbones import backbone
from zerotprune.data import demo

SOURCE = Path(ztp.__file__).parent
#: what only backbones may read of a model, or import
PRIVATE = {"num_classes", "pretrained_cfg", "patch_embed", "forward_intermediates", "global_pool"}
LIBRARIES = {"timm", "torchvision", "transformers", "open_clip"}


@pytest.mark.parametrize("family", FAMILIES)
def test_facts_are_those_of_the_model(family: str) -> None:
    model: Any = build(family)
    vit = backbone(model)
    assert (1, *vit.input_shape) == tuple(images_for(model, 1).shape)
    assert vit.outputs == model.num_classes
    with torch.inference_mode():
        assert model(images_for(model, 1)).shape[-1] == (vit.outputs or model.num_features)


def test_names_transform_and_classes_of_a_published_model() -> None:
    with torch.device("meta"):
        vit = backbone(timm.create_model("deit_tiny_patch16_224"))
        features = backbone(timm.create_model("vit_small_patch14_dinov2", img_size=224))
    assert vit.name == "deit_tiny_patch16_224.fb_in1k"
    assert vit.class_names()[:2] == ["tench", "goldfish"]
    assert len(vit.class_names()) == vit.outputs == 1000
    assert vit.normalization[0] == pytest.approx((0.485, 0.456, 0.406))
    assert features.outputs == 0
    assert features.input_shape == (3, 224, 224)


def test_the_built_in_model_names_its_digits() -> None:
    vit = backbone(demo.untrained())
    assert vit.class_names() == [f"digit {number}" for number in range(10)]
    assert vit.normalization == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert vit.name == ""


def test_a_model_set_to_another_size() -> None:
    model = demo.untrained()
    backbone(model).resize_(64)
    assert backbone(model).input_shape == (3, 64, 64)
    assert backbone(model).geometry.grid == (8, 8)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_the_one_transformer_of_a_sequential_is_pruned() -> None:
    inner = build("deit")
    model = nn.Sequential(Scaled(), inner)
    images = images_for(inner)
    with torch.inference_mode():
        before = model(images)
        pruned = ztp.prune_(model, cost=0.7)(images)
        assert torch.equal(pruned, inner(2 * images))
        assert not torch.equal(pruned, before)
        assert len(ztp.trace(model, images)) > 0
        assert torch.equal(ztp.restore_(model)(images), before)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = build("deit")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Tower(), r"it contains a timm VisionTransformer at \.trunk: pass model\.trunk"),
        (nn.Linear(2, 2), "from torch, not a Vision Transformer of timm"),
        (
            nn.Sequential(build("deit"), build("deit")),
            r"at \.0 and a timm VisionTransformer at \.1: pass model\.0",
        ),
    ],
)
def test_a_refused_model_says_what_to_do(model: nn.Module, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ztp.prune_(model, cost=0.7)


def test_repr_shows_what_is_pruned() -> None:
    model: Any = build("deit")
    plain = repr(model)
    ztp.prune_(model, cost=0.7, method="tome")
    assert re.search(r"tome\b.*\bblocks 1, 2, 3, 4\b", repr(model))
    assert repr(ztp.restore_(model)) == plain


#: what is of a library and no model: parts of a training, sets of images
OTHERWISE = {"finetune/recipe.py": {"timm"}, "data/sets.py": {"torchvision"}}


def test_only_backbones_know_a_library() -> None:
    """No other package imports a library for its models, or reads what only its models have."""
    offences = []
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] == "backbones":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            absolute = not (isinstance(node, ast.ImportFrom) and node.level)
            used = {module.partition(".")[0] for module in modules} if absolute else set()
            names = {node.attr} if isinstance(node, ast.Attribute) else set()
            names |= {str(node.value)} if isinstance(node, ast.Constant) else set()
            used -= OTHERWISE.get(path.relative_to(SOURCE).as_posix(), set())
            if used & LIBRARIES or names & PRIVATE:
                offences.append(f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}")
    assert offences == []
