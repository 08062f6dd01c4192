"""Outputs for every patch of torchvision, open_clip and LV-ViT."""

from __future__ import annotations

from typing import Any

import open_clip
import pytest
import torch
from torch import Tensor

import zerotprune as ztp
from tests.equal_patches import equal_patches
from tests.keep_all import EVERYWHERE
from tests.libraries import NAMES, PATCHES, build, images_for, stir
from zerotprune.backbones import backbone

MERGED = ztp.Schedule(tuple(ztp.Stage(block, similar=6) for block in (1, 2, 4)))
STAGED = ztp.Schedule((ztp.Stage(1, 0.9, 4), ztp.Stage(2, 0.8, 4), ztp.Stage(4, 0.5)))
SCHEDULES = (MERGED.by("fold"), MERGED.by("tome"), STAGED.by("zero-tprune"))
CLIP = [param for param in NAMES if str(param.values[0]).startswith("open_clip")]


def shown(model: Any, images: Tensor) -> list[Tensor]:
    """Return the outputs of each block and of the model, and open_clip's intermediates."""
    seen: list[Any] = []
    hooks = [
        block.register_forward_hook(lambda _, inputs, out: seen.append(out))
        for block in backbone(model).blocks
    ]
    with torch.inference_mode():
        out = model(images)
        for hook in hooks:
            hook.remove()
        seen += list(out) if isinstance(out, tuple) else [out]
        if hasattr(model, "forward_intermediates"):
            normed = model.attn_pool is None  # else the last norm is of another width
            features = model.forward_intermediates(images, normalize_intermediates=normed)
            seen += features["image_intermediates"]
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_nothing_pruned_is_the_model(name: str) -> None:
    model = build(name)
    images = images_for(model)
    torch.backends.mha.set_fastpath_enabled(False)  # its last digits differ from all other paths
    try:
        expected = shown(model, images)
        actual = shown(ztp.prune_(model, EVERYWHERE, outputs="grid"), images)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_equal_patches_merged_pair_by_pair_change_nothing(name: str) -> None:
    model = build(name).double()
    images = images_for(model)
    with equal_patches(model, 2):
        expected = shown(model, images)
        schedule = ztp.Schedule((ztp.Stage(2, similar=PATCHES // 2),)).by("fold")
        actual = shown(ztp.prune_(model, schedule, outputs="grid"), images)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_add_nothing_give_the_input_back_in_order(name: str) -> None:
    model = build(name).double()
    images = images_for(model)
    ends = ("out_proj.", "c_proj.", "mlp.3.", "attn.proj.", "fc2.")
    with torch.no_grad():
        for block in backbone(model).blocks:
            for path, parameter in block.named_parameters():
                if any(end in path for end in ends):
                    parameter.zero_()
    expected = shown(model, images)
    for schedule in SCHEDULES:
        actual = shown(ztp.prune_(model, schedule, outputs="grid"), images)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["torchvision", "open_clip"])
def test_a_head_that_reads_cls_gives_what_it_gives_without_the_grid(name: str) -> None:
    model = build(name).double()
    images = images_for(model)
    with torch.inference_mode():
        plain = model(images)
        for schedule in SCHEDULES:
            short = ztp.prune_(model, schedule)(images)
            whole = ztp.prune_(model, schedule, outputs="grid")(images)
            torch.testing.assert_close(whole, short, rtol=1e-9, atol=1e-9)
            assert not torch.allclose(whole, plain)
        if name == "torchvision":
            x = model._process_input(images)
            x = torch.cat((model.class_token.expand(len(x), -1, -1), x), dim=1)
            assert model.encoder(x).shape == (2, 1 + PATCHES, x.shape[-1])


@pytest.mark.parametrize("name", CLIP)
def test_intermediates_of_open_clip_are_what_leaves_the_blocks(name: str) -> None:
    model = ztp.prune_(build(name), SCHEDULES[0], outputs="grid")
    images, count = images_for(model), len(model.transformer.resblocks)
    left = shown(model, images)[:count]
    with torch.inference_mode():
        features = model.forward_intermediates(
            images, [1, 3], output_fmt="NLC", output_extra_tokens=True, stop_early=True,
            intermediates_only=True,
        )  # fmt: skip
    for place, patches, cls in zip(
        (1, 3), features["image_intermediates"], features["image_intermediates_prefix"], strict=True
    ):
        assert torch.equal(torch.cat((cls, patches), dim=1), left[place])
    ztp.prune_(model, SCHEDULES[0])
    with pytest.raises(ValueError, match='outputs="grid"'):
        model.forward_intermediates(images)


def test_a_timm_trunk_in_a_whole_clip_model() -> None:
    vision = {
        "timm_model_name": "test_vit", "timm_model_pretrained": False, "timm_pool": "map",
        "timm_proj": "none", "image_size": 160,
    }  # fmt: skip
    text = {"context_length": 8, "vocab_size": 60, "width": 24, "heads": 2, "layers": 1}
    model: Any = stir(open_clip.CLIP(64, vision, text)).eval()
    images = torch.randn(2, 3, 160, 160)
    with torch.inference_mode():
        before = model.forward_intermediates(image=images)["image_intermediates"]
        ztp.prune_(model, cost=0.7, outputs="grid")
        after = model.forward_intermediates(image=images)["image_intermediates"]
    assert [x.shape for x in after] == [x.shape for x in before]
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[-1], before[-1])
