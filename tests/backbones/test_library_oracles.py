"""torchvision, open_clip and LV-ViT against oracles: equal patches, timm twins, tlt, fvcore."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.backbones.test_libraries import METHODS, every_method, models
from tests.counting import macs_of
from tests.equal_patches import equal_patches
from tests.libraries import NAMES, POOLING, build, images_for, tlt, with_tlt
from zerotprune.backbones import backbone
from zerotprune.backbones.lvvit.create import SIZES, create
from zerotprune.cost import Compute
from zerotprune.method import Method
from zerotprune.methods import Fold, ToMe

#: what costs as another one does
WITH_TWIN = ("open_clip", "open_clip, layer scale, quick gelu", "open_clip, own attention",
         "open_clip, attention pool", "torchvision")  # fmt: skip


@models
def test_merging_equal_patches_changes_nothing(name: str) -> None:
    """Merge seven of the pairs, three of four, and in the last block, which only the head
    follows."""
    model = build(name).double()
    images = images_for(model)
    for group, block, method in ((2, 1, ToMe()), (2, 3, Fold()), (4, 2, Fold()), (2, 5, ToMe())):
        with torch.inference_mode(), equal_patches(model, group):
            expected = ztp.restore_(model)(images)
            schedule = ztp.Schedule((ztp.Stage(block, similar=7),), method)
            actual = ztp.prune_(model, schedule)(images)
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
            assert block == 5 or not torch.equal(actual, expected)


@pytest.mark.parametrize("name", POOLING)
def test_sizes_and_padding_matter_to_the_head(name: str) -> None:
    """Compare with the library's own head over every token, repeated once per patch in it."""
    model = build(name).double()
    images, blocks = images_for(model, 3), backbone(model).blocks
    for method, schedule in (METHODS[2], METHODS[3]):
        ztp.prune_(model, schedule.by(method))
        passed = list[Any]()
        hook = blocks[3].register_forward_hook(
            lambda block, args, out, passed=passed: passed.append(out)
        )
        with torch.inference_mode():
            actual = model(images)
            hook.remove()
            forward = blocks[4].forward
            last = forward(passed[0])
            weight = passed[0].weight()
            for at in range(len(images)):
                repeated = last[at : at + 1].repeat_interleave(weight[at].long(), dim=1)
                blocks[4].forward = lambda x, repeated=repeated, **kwargs: repeated
                expected = type(model).forward(model, images[at : at + 1])
                blocks[4].forward = forward
                torch.testing.assert_close(actual[at : at + 1], expected, rtol=1e-9, atol=1e-9)


def into_timm(state: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Rename weights: replace the first part of each name that is in the table."""
    moved = {}
    for key, value in state.items():
        for old, new in names.items():
            key = key.replace(old, new)
        moved[key] = value
    return moved


def torchvision_twin(model: Any) -> Any:
    names = {
        "class_token": "cls_token", "encoder.pos_embedding": "pos_embed",
        "conv_proj": "patch_embed.proj", "encoder.layers.encoder_layer_": "blocks.",
        "ln_1": "norm1", "ln_2": "norm2", "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj", "mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2",
        "encoder.ln": "norm", "heads.head": "head",
    }  # fmt: skip
    twin = timm.create_model("vit_tiny_patch16_224", img_size=96, embed_dim=48, depth=5,
                             num_heads=3, mlp_ratio=2, num_classes=7)  # fmt: skip
    twin.load_state_dict(into_timm(model.state_dict(), names))
    return twin.eval().double()


def clip_twin(model: Any) -> Any:
    names = {
        "class_embedding": "cls_token", "positional_embedding": "pos_embed",
        "conv1": "patch_embed.proj", "transformer.resblocks": "blocks", "ln_1": "norm1",
        "ln_2": "norm2", "attn.in_proj_": "attn.qkv.", "attn.out_proj": "attn.proj",
        "c_fc": "fc1", "c_proj": "fc2", "ln_pre": "norm_pre", "ln_post": "norm",
    }  # fmt: skip
    state = into_timm(model.state_dict(), names)
    state["cls_token"] = state["cls_token"][None, None]
    state["pos_embed"], state["head.weight"] = state["pos_embed"][None], state.pop("proj").T
    state["head.bias"] = torch.zeros(24)
    twin = timm.create_model("vit_base_patch16_clip_224", img_size=96, embed_dim=48, depth=5,
                             num_heads=3, mlp_ratio=2, num_classes=24)  # fmt: skip
    twin.load_state_dict(state)
    return twin.eval().double()


@every_method
@pytest.mark.parametrize(
    ("name", "twin_of"),
    [("torchvision", torchvision_twin), ("open_clip", clip_twin),
     ("open_clip, own attention", clip_twin)],
)  # fmt: skip
def test_the_same_as_timm_with_the_same_weights(
    name: str, twin_of: Any, method: Method, schedule: ztp.Schedule
) -> None:
    """The kept patches, the prediction and the cost are the same."""
    model = build(name).double()
    twin, images = twin_of(model), images_for(model, 3)
    if name == "torchvision":
        for norm in [twin.norm, *(n for b in twin.blocks for n in (b.norm1, b.norm2))]:
            assert norm.eps == model.encoder.ln.eps
    with torch.inference_mode():
        torch.testing.assert_close(twin(images), model(images), rtol=1e-9, atol=1e-9)
        for vit in (model, twin):
            ztp.prune_(vit, schedule.by(method))
        torch.testing.assert_close(twin(images), model(images), rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(*(ztp.trace(vit, images) for vit in (model, twin)), strict=True):
        assert torch.equal(ours.fate, theirs.fate)
        assert torch.equal(ours.partner, theirs.partner)
    for convention in ("full", "paper"):
        for compute in ("all", "needed"):
            counts = [ztp.gmacs(vit, None, convention, compute=compute)
                      for vit in (model, twin)]  # fmt: skip
            assert counts[0] == counts[1]


@with_tlt
def test_lvvit_is_tlt_s() -> None:
    """With tlt's weights under their own names: equal to the last bit without fused attention."""
    theirs = build("tlt")
    ours = create_like(theirs)
    images = images_for(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))
        for block in ours.blocks:
            block.attn.fused_attn = False
        assert torch.equal(ours(images), theirs(images))
        for method, schedule in METHODS:
            pruned = [ztp.prune_(model, schedule.by(method))(images) for model in (ours, theirs)]
            assert torch.equal(*pruned)


def create_like(theirs: nn.Module) -> Any:
    from zerotprune.backbones.lvvit import LVViT

    ours = LVViT(image_size=96, dim=48, depth=5, heads=3, classes=7)
    ours.load_state_dict(theirs.state_dict())
    return ours.eval()


@with_tlt
@pytest.mark.parametrize("name", ["lvvit_s", "lvvit_m"])
def test_lvvit_sizes_are_tlt_s(name: str) -> None:
    theirs = getattr(tlt(), name)()
    with torch.device("meta"):
        ours: Any = create(name, pretrained=False)
    shapes = [
        {k: tuple(v.shape) for k, v in model.state_dict().items()} for model in (ours, theirs)
    ]
    assert shapes[0] == shapes[1]
    first, block = ours.blocks[0], theirs.blocks[0]
    assert first.skip_lam == block.skip_lam
    assert first.attn.num_heads == block.attn.num_heads
    assert SIZES[name].crop == theirs.default_cfg["crop_pct"]
    assert backbone(theirs).name == backbone(ours).name == name


@pytest.mark.parametrize("name", [param for param in NAMES if param.values[0] not in WITH_TWIN])
def test_gmacs_are_what_torch_counts(name: str) -> None:
    zero, _, fold, _ = METHODS
    cases: list[tuple[ztp.Schedule, Compute]] = [
        (zero[1].by(zero[0]), "all"), (fold[1].by(fold[0]), "needed"),
    ]  # fmt: skip
    for schedule, compute in cases:
        model = ztp.prune_(build(name), schedule, compute=compute)
        expected = round(ztp.gmacs(model, compute=compute) * 1e9)
        one, two = (macs_of(partial(model, images_for(model, batch))) for batch in (1, 2))
        assert two - one == expected  # what one more image costs
