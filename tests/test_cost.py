"""Cost: closed form = torch's count = fvcore's count; published figures; the budget solver."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import nn

import zerotprune as ztp
from tests.counting import macs_of
from tests.families import FAMILIES, build, images_for
from tests.nursery import run_script
from zerotprune.backbones import backbone
from zerotprune.cost import Load, block_macs, total_macs
from zerotprune.methods import Slicing, TopK

PRUNED = ztp.Schedule((ztp.Stage(1, 1.0, 4, 5), ztp.Stage(2, 0.8, 4, 3), ztp.Stage(4, 0.5)))


def counted_by_torch(model: Any) -> int:
    """Count what one more image costs."""
    one, two = (macs_of(partial(model, images_for(model, batch))) for batch in (1, 2))
    return two - one


def fit(model: Any, schedule: ztp.Schedule) -> ztp.Schedule:
    depth = len(model.blocks)
    return ztp.Schedule(tuple(stage for stage in schedule.stages if stage.block < depth))


def reading_cls(model: Any) -> Any:
    """Put the head on the CLS token, if there is one: then the last block may be short."""
    if model.cls_token is not None and getattr(model, "attn_pool", None) is None:
        model.global_pool = "token"
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_equals_torch(family: str) -> None:
    """Count it unpruned, pruned, and pruned with only the needed work computed."""
    model: Any = build(family)
    for schedule in (ztp.Schedule(), fit(model, PRUNED)):
        ztp.prune_(model, schedule, compute="all")
        assert round(ztp.gmacs(model) * 1e9) == counted_by_torch(model)
    ztp.prune_(reading_cls(model), fit(model, PRUNED))
    whole, exact = (ztp.gmacs(model, compute=kind) for kind in ("all", "needed"))
    assert round(exact * 1e9) == counted_by_torch(model)
    assert exact < whole or (model.global_pool != "token" and family.startswith("parallel scaling"))


@pytest.mark.parametrize(
    ("family", "layer"),
    [("deit", "attn.qkv"), ("eva", "attn.qkv"), ("parallel scaling", "in_proj")],
)
def test_a_layer_that_cannot_be_split_is_counted_whole(family: str, layer: str) -> None:
    class Quantized(nn.Linear):
        pass

    model: Any = build(family)
    model.global_pool = "token"
    split = ztp.gmacs(model, PRUNED, compute="needed")
    model.blocks[-1].get_submodule(layer).__class__ = Quantized
    ztp.prune_(model, PRUNED)
    exact = ztp.gmacs(model, compute="needed")
    assert round(exact * 1e9) == counted_by_torch(model)
    assert split < exact < ztp.gmacs(model)


@pytest.mark.parametrize("compute", ["all", "needed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_paper_convention_counts_the_norms_that_run(
    family: str, compute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count inside the norms' classes: a hook would make the last block whole."""
    model: Any = reading_cls(build(family))
    ztp.prune_(model, fit(model, PRUNED), compute=compute)
    full, paper = (
        round(ztp.gmacs(model, convention=convention, compute=compute) * 1e9)
        for convention in ("full", "paper")
    )
    values: list[int] = []
    norms = [module for module in model.modules() if hasattr(module, "normalized_shape")]
    counted = [norm for norm in norms if norm not in list(model.patch_embed.modules())]
    for kind in {type(norm) for norm in counted}:
        monkeypatch.setattr(kind, "forward", counting(kind.forward, values, counted))
    with torch.no_grad():
        model(images_for(model, 1))
    assert paper - full == 5 * sum(values) - backbone(model).geometry.stem


def counting(forward: Any, values: list[int], norms: list[nn.Module]) -> Any:
    def counted(norm: nn.Module, x: torch.Tensor) -> Any:
        values.append(x.numel() if norm in norms else 0)
        return forward(norm, x)

    return counted


def test_what_the_exact_last_block_saves_of_an_unpruned_deit_tiny() -> None:
    """By hand: of the last block's 197 tokens, only CLS queries and passes the MLP."""
    with torch.device("meta"):
        geometry = backbone(timm.create_model("deit_tiny_patch16_224")).geometry
    loads = [Load(197, 197, 197, 0)] * 12
    exact = [*loads[:-1], Load(197, 1, 1, 0)]
    assert f"{total_macs(geometry, loads, 197) / 1e9:.3f}" == "1.254"
    assert f"{total_macs(geometry, exact, 1) / 1e9:.3f}" == "1.167"
    shape, dim = geometry.blocks[-1], 192
    asked = 2 * dim * dim + 8 * dim * dim + 2 * 197 * dim
    assert block_macs(shape, exact[-1]) == 197 * 2 * dim * dim + asked
    assert block_macs(shape, loads[-1]) == 197 * (2 * dim * dim + asked)


METHODS = [
    ztp.ZeroTPrune(order="i-s"),
    ztp.ZeroTPrune(start="uniform"),
    ztp.ZeroTPrune(ranking="cls"),
    ztp.ZeroTPrune(ranking="average"),
    ztp.ZeroTPrune(ranking="accumulated"),
    ztp.ZeroTPrune(ranking="random"),
    ztp.ZeroTPrune(partition="none"),
    ztp.ZeroTPrune(features="x"),
    TopK("cls"),
    TopK("average"),
    TopK("accumulated"),
    TopK("random"),
    Slicing(),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_method_counts_its_own_work(method: Any) -> None:
    for compute in ("all", "needed"):
        model: Any = ztp.prune_(build("deit"), PRUNED.by(method), compute=compute)
        closed = round(ztp.gmacs(model, compute=compute) * 1e9)
        assert closed == counted_by_torch(model)


FVCORE = """
import logging, warnings
warnings.simplefilter("ignore")
import zerotprune as ztp
from fvcore.nn import FlopCountAnalysis
from tests.families import build, images_for
from tests.test_cost import PRUNED

logging.disable()
for family in ("deit", "deit distilled", "clip, pre-norm", "qk norm"):
    for schedule in (ztp.Schedule(), PRUNED):
        model = ztp.prune_(build(family), schedule, compute="all")
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False  # fvcore would silently drop fused attention
        analysis = FlopCountAnalysis(model, images_for(model, 1))
        counted = analysis.total() - analysis.by_module()["patch_embed"]
        closed = round(ztp.gmacs(model, convention="paper") * 1e9)
        print("same" if counted == closed else f"{family}: fvcore {counted}, ours {closed}")
"""


def test_paper_convention_equals_fvcore_without_patch_embedding() -> None:
    """Run in a separate process: fvcore traces, and traced shapes are not integers."""
    assert run_script(FVCORE) == ["same"] * 8


def test_published_figures_of_deit_small() -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_small_patch16_224")
    schedule = ztp.Schedule.preset("ablation-is")
    assert f"{ztp.gmacs(model, convention='paper'):.2f}" == "4.55"
    assert f"{ztp.gmacs(model, schedule, convention='paper'):.2f}" == "3.08"
    assert f"{ztp.gmacs(model):.3f}" == "4.599"


def test_other_patch_embeddings() -> None:
    """Those with adapters, or with other channels than three, are counted by torch."""
    peft = pytest.importorskip("peft")
    plain = timm.create_model("test_vit", num_classes=5)
    config = peft.LoraConfig(target_modules=["patch_embed.proj"], r=2)
    adapted = peft.inject_adapter_in_model(config, copy.deepcopy(plain))
    size, patches, dim = 3 * 16 * 16, 100, 64
    more = (ztp.gmacs(adapted) - ztp.gmacs(plain)) * 1e9
    assert more == pytest.approx(patches * 2 * (size + dim))
    shape = {"depth": 2, "embed_dim": 48, "num_heads": 3}
    gray, colored = (
        timm.create_model("vit_tiny_r_s16_p8_224", **shape, img_size=64, in_chans=channels)
        for channels in (1, 3)
    )
    assert 0 < ztp.gmacs(gray) < ztp.gmacs(colored)
