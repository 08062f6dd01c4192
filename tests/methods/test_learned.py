"""Weights of a method's own: they lie on the model, move and are saved with it; DynamicViT's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import zerotprune as ztp
from tests.families import build, images_for
from zerotprune.backbones import backbone
from zerotprune.data import models
from zerotprune.methods import DynamicViT

SCHEDULE = ztp.Schedule((ztp.Stage(1, 0.8), ztp.Stage(3, 0.6)), DynamicViT())


def trained() -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a model with trained predictors, and its state dict."""
    model: Any = ztp.prune_(build("deit"), SCHEDULE)
    state = {
        name: torch.randn_like(value) if name.startswith("zerotprune.") else value
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state)
    return model, state


def test_restore_takes_off_what_was_drawn_and_leaves_what_was_learned() -> None:
    model: Any = build("deit")
    before = list(model.state_dict())
    ztp.prune_(model, SCHEDULE)
    assert list(model.state_dict())[: len(before)] == before
    assert "zerotprune.dynamicvit.3.last.weight" in model.state_dict()
    ztp.prune_(model, cost=0.7)
    assert list(model.state_dict()) == before
    model, state = trained()
    images = images_for(model)
    answer = model(images)
    ztp.restore_(model)
    assert list(model.state_dict()) == list(state)
    assert torch.equal(ztp.prune_(model, SCHEDULE)(images), answer)


def test_what_was_drawn_is_drawn_again() -> None:
    torch.manual_seed(1)
    model: Any = ztp.prune_(build("deit"), SCHEDULE)
    rest, images = torch.rand(1), images_for(model)
    first = model(images)
    torch.manual_seed(1)
    again: Any = ztp.prune_(build("deit"), SCHEDULE)
    assert torch.equal(again(images), first)
    assert torch.equal(torch.rand(1), rest)  # the generator that all share was not touched
    other = ztp.prune_(model, SCHEDULE.by(DynamicViT(seed=1)))
    assert not torch.equal(other(images), first)


def test_weights_go_where_the_model_goes() -> None:
    model, _ = trained()
    images = images_for(model)
    copy = ztp.pruned(model, SCHEDULE)
    assert (
        copy.zerotprune.dynamicvit["1"].last.weight is model.zerotprune.dynamicvit["1"].last.weight
    )
    double = model.double()(images.double())
    assert double.dtype == torch.float64
    half = model.bfloat16()(images.bfloat16())
    assert half.isfinite().all()


def test_a_file_that_has_them_is_loaded_with_them(tmp_path: Path) -> None:
    model: Any = timm.create_model("test_vit", num_classes=5).eval()
    schedule = ztp.schedule_for(model, cost=0.7, method="dynamicvit")
    ztp.prune_(model, schedule)
    for weight in model.zerotprune.parameters():
        torch.nn.init.normal_(weight)
    images = images_for(model)
    answer = model(images)
    for file in ("w.safetensors", "w.pt"):
        path = tmp_path / file
        state = model.state_dict()
        save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
        loaded = models.load("test_vit", weights=path)
        assert torch.equal(ztp.prune_(loaded, schedule)(images), answer)
    first = schedule.stages[0].block
    for bad in (f"zerotprune.dynamicvit.{first}.more", f"zerotprune.another.{first}.weight"):
        torch.save(state | {bad: torch.zeros(3)}, tmp_path / "bad.pt")
        with pytest.raises(ValueError, match=bad):
            models.load("test_vit", weights=tmp_path / "bad.pt")


def test_stages_without_weights_are_refused() -> None:
    model, _ = trained()
    with pytest.raises(ValueError, match=r"blocks 1, 3.* block 2"):
        ztp.prune_(model, ztp.Schedule((ztp.Stage(2, 0.5),), DynamicViT()))
    assert ztp.gmacs(model) == ztp.gmacs(model, SCHEDULE)


def test_the_predictor_is_the_published_one() -> None:
    """LayerNorm, C → C, then C → C/2 → C/4 → 2."""
    model: Any = ztp.prune_(build("deit"), SCHEDULE)
    shapes = {
        name: tuple(value.shape)
        for name, value in model.zerotprune.dynamicvit["1"].named_parameters()
    }
    width = backbone(model).geometry.dim
    assert shapes == {
        "norm.weight": (width,), "norm.bias": (width,),
        "inner.weight": (width, width), "inner.bias": (width,),
        "first.weight": (width // 2, width), "first.bias": (width // 2,),
        "second.weight": (width // 4, width // 2), "second.bias": (width // 4,),
        "last.weight": (2, width // 4), "last.bias": (2,),
    }  # fmt: skip


def test_counts_are_powers_of_one_share() -> None:
    """As published: ⌊196 ρ⌋, ⌊196 ρ²⌋, ⌊196 ρ³⌋."""
    with torch.device("meta"):
        model = timm.create_model("deit_small_patch16_224")
    schedule = ztp.schedule_for(model, gmacs=2.95, method="dynamicvit")
    patches, counts = 196, []
    for stage in schedule.stages:
        patches = stage.kept(patches)
        counts.append(patches)
    fitting = [
        share / 1000
        for share in range(400, 1000)
        if [int(196 * (share / 1000) ** power + 1e-9) for power in (1, 2, 3)] == counts
    ]
    assert fitting, counts
    assert fitting[0] == pytest.approx(0.7, abs=0.02)  # 2.9 G by its authors' count
