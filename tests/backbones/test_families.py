"""Every family of timm's Vision Transformers: right, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import FAMILIES, build, images_for, precise
from tests.nursery import run_script
from tests.oracle import pruning_layer
from zerotprune.backbones import backbone
from zerotprune.backbones.timm import refuse_old
from zerotprune.block import PrunedBlock, Task
from zerotprune.plan import Plan
from zerotprune.tracing import Fate, StageTrace

#: does timm have all classes that we know?
NEWER = hasattr(timm.layers, "AttentionPoolPrr")

SCHEDULE = ztp.Schedule((ztp.Stage(2, 0.8, 4, 5), ztp.Stage(3, 0.7, 2, 2), ztp.Stage(4, 0.9)))


def schedule_of(model: Any) -> ztp.Schedule:
    """Fit the schedule to test_vit models, which have more or fewer blocks."""
    depth = len(model.blocks)
    return ztp.Schedule(tuple(stage for stage in SCHEDULE.stages if stage.block < depth))


@contextmanager
def blocks_called_with(model: Any) -> Iterator[list[tuple[nn.Module, Tensor, dict[str, Any]]]]:
    """Return the arguments that the model passes to each of its blocks."""
    calls: list[tuple[nn.Module, Tensor, dict[str, Any]]] = []
    hooks = [
        block.register_forward_pre_hook(
            lambda block, args, kwargs: calls.append((block, args[0], kwargs)), with_kwargs=True
        )
        for block in model.blocks
    ]
    yield calls
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_make_the_block_bit_for_bit(family: str, fused: bool) -> None:
    model: Any = build(family)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    taken = backbone(model)
    with torch.inference_mode(), blocks_called_with(model) as calls:
        model(images_for(model))
    geometry = taken.geometry
    task = Task(ztp.ZeroTPrune(), None, geometry, last=True)
    plan = Plan(ztp.Schedule(), taken.geometry)
    assert len(calls) == geometry.depth
    for block, x, kwargs in calls:
        kwargs = {name: value for name, value in kwargs.items() if name not in MASKS}
        with torch.inference_mode():
            pruned = PrunedBlock(taken, block, task, plan)
            out = pruned.run(x, kwargs)
            assert isinstance(out, Tensor)
            assert torch.equal(out, block(x, **kwargs))


MASKS = ("attn_mask", "is_causal")


@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_model_equals_masking_the_dropped_tokens(family: str) -> None:
    """Compare with the library's own blocks on all tokens, attention to dropped ones masked."""
    model: Any = precise(build(family))
    images = images_for(model)
    ztp.prune_(model, schedule_of(model))
    traces = ztp.trace(model, images)
    with torch.inference_mode():
        pruned = model(images)
        ztp.restore_(model)
        for image in range(len(images)):
            expected = masked_logits(model, images[image : image + 1], traces, image)
            torch.testing.assert_close(pruned[image : image + 1], expected)
        assert not torch.allclose(pruned, model(images))


def masked_logits(model: Any, image: Tensor, traces: list[StageTrace], at: int) -> Tensor:
    with blocks_called_with(model) as calls:
        model(image)
    x, prefix = calls[0][1], model.num_prefix_tokens
    alive = torch.ones(x.shape[1], dtype=torch.bool)
    by_block = {trace.block: trace for trace in traces}
    for number, (block, _, kwargs) in enumerate(calls, start=1):
        mask = torch.zeros(1, 1, len(alive), len(alive), dtype=x.dtype)
        mask = mask.masked_fill(~alive, -torch.inf)
        if "shared_rel_pos_bias" in kwargs:
            shared = kwargs["shared_rel_pos_bias"]
            x = block(x, shared_rel_pos_bias=mask if shared is None else shared + mask)
        else:
            x = block(x, **{**kwargs, "attn_mask": mask})
        if number in by_block:
            alive[prefix:] = by_block[number].fate[at] == Fate.KEPT
    logits: Tensor = model.forward_head(model.norm(x[:, alive]))
    return logits


@pytest.mark.parametrize("family", [name for name in FAMILIES if "beit" not in name])
def test_scores_come_from_the_model_s_own_attention(family: str) -> None:
    """Compare with the NumPy twin on the library's unfused attention, caught at its dropout."""
    model: Any = precise(build(family))
    images = images_for(model, 1)
    graphs, keys = caught_attention(model, images, block=2)
    stage = ztp.Stage(2, 0.6, 5, 3)
    ztp.prune_(model, ztp.Schedule((stage,)))
    (trace,) = ztp.trace(model, images)
    prefix, cls = model.num_prefix_tokens, model.cls_token is not None
    layer = pruning_layer(
        graphs.numpy(), keys[prefix:].numpy(), prefix=prefix, cls=cls, keep=0.6, similar=5, rounds=3
    )
    assert trace.where(Fate.KEPT)[0] == layer.kept.tolist()
    assert trace.where(Fate.SIMILAR)[0] == sorted(layer.similar.tolist())
    assert trace.where(Fate.UNIMPORTANT)[0] == layer.unimportant.tolist()
    for dropped, partner in zip(layer.similar, layer.partner, strict=True):
        assert trace.partner[0, dropped] == partner


def caught_attention(model: Any, images: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return a block's attention graph (heads, tokens, tokens) and its keys, heads concatenated."""
    seen: dict[str, list[Tensor]] = {"graph": [], "key": []}
    module = model.blocks[block - 1]
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False

    def catch(name: str) -> Any:
        return lambda _, args, out: seen[name].append((args[0] if name == "graph" else out)[0])

    hooks = []
    for name, part in module.named_modules():
        if name.endswith("attn_drop"):
            hooks.append(part.register_forward_hook(catch("graph")))
        if name.endswith("k_norm"):
            hooks.append(part.register_forward_hook(catch("key")))
    with torch.inference_mode():
        model(images)
    for hook in hooks:
        hook.remove()
    graph = torch.cat(seen["graph"])
    heads_first = [
        key if key.shape[-2] == graph.shape[-1] else key.transpose(0, 1) for key in seen["key"]
    ]
    groups = len(graph) // sum(len(key) for key in heads_first)
    keys = torch.cat([key.repeat_interleave(groups, 0) for key in heads_first])
    return graph, keys.transpose(0, 1).flatten(1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {}, "ResNet"),
        ("swin_tiny_patch4_window7_224", {}, "SwinTransformer"),
        ("vit_relpos_small_patch16_224", {}, "VisionTransformerRelPos"),
        ("samvit_base_patch16", {}, "VisionTransformerSAM"),
        ("naflexvit_base_patch16_gap", {}, "NaFlexVit"),
        ("vit_dlittle_patch16_reg1_gap_256", {}, "DiffAttention.*negative"),
        ("vit_tiny_patch16_224", {"patch_drop_rate": 0.5}, "patch dropout"),
    ],
)
def test_what_cannot_be_right_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    if name.startswith("vit_dlittle") and not NEWER:
        pytest.skip(f"timm {timm.__version__} has no differential attention")
    with torch.device("meta"):
        model = timm.create_model(name, **options)
    with pytest.raises(TypeError, match=message):
        ztp.prune_(model, SCHEDULE)


def test_not_a_vision_transformer() -> None:
    with pytest.raises(TypeError, match=r"Linear.*torch"):
        ztp.prune_(nn.Linear(3, 3), SCHEDULE)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module.*str"):
        ztp.prune_("deit", SCHEDULE)  # type: ignore[type-var]


def test_a_subclass_with_its_own_loop_is_refused() -> None:
    class Custom(timm.models.vision_transformer.VisionTransformer):  # type: ignore[misc]
        def forward_features(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(TypeError, match=r"Custom.*forward_features"):
        ztp.prune_(Custom(img_size=32, depth=5, embed_dim=48, num_heads=3), SCHEDULE)


def test_a_block_replaced_by_something_else_is_refused() -> None:
    model: Any = build("deit")
    model.blocks[1].forward = lambda x: x
    with pytest.raises(TypeError, match=r"forward of block 2"):
        ztp.prune_(model, SCHEDULE)


OLDER = """
import sys, timm.layers, timm.models.eva as eva, timm.models.vision_transformer as vit, torch
assert "zerotprune.backbones.timm" not in sys.modules
del timm.layers.AttentionPoolPrr, eva.AttentionRope, vit.ParallelThingsBlock
import zerotprune as ztp
model = ztp.prune_(timm.create_model("test_vit").eval(), cost=0.7)
print(tuple(model(torch.zeros(1, 3, 160, 160)).shape))
"""


def test_an_old_version_is_refused() -> None:
    refuse_old("1.0.20")
    refuse_old("1.1.0.dev0")
    with pytest.raises(TypeError, match=r"timm 1\.0\.9: .*1\.0\.20 or newer"):
        refuse_old("1.0.9")


@pytest.mark.skipif(not NEWER, reason="this is such a version")
def test_a_version_of_timm_without_some_classes() -> None:
    """Older versions lack some classes; the others are pruned as before."""
    assert run_script(OLDER) == ["(1, 1000)"]
