"""Models that take images of other sizes: the same cost at each, or a refusal in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import nn

import zerotprune as ztp
from tests.counting import macs_of
from tests.nursery import run_script
from zerotprune import block
from zerotprune.surgery import pruned_blocks


def timm_model() -> nn.Module:
    model: nn.Module = timm.create_model("test_vit", num_classes=5, dynamic_img_size=True).eval()
    return model


def hf_model() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=6, num_attention_heads=2, intermediate_size=192,
        image_size=160, patch_size=16, num_labels=5,
    )  # fmt: skip
    model: nn.Module = transformers.ViTForImageClassification(config).eval()
    return model


def measured(model: nn.Module, height: int, width: int, **kwargs: Any) -> int:
    return macs_of(lambda: model(torch.rand(1, 3, height, width), **kwargs))


@pytest.mark.parametrize("method", ["fold", "zero-tprune"])
@pytest.mark.parametrize(
    ("make", "kwargs"), [(timm_model, {}), (hf_model, {"interpolate_pos_encoding": True})]
)
def test_a_budget_is_met_at_every_size(make: Any, kwargs: dict[str, Any], method: str) -> None:
    model = make()
    ztp.prune_(model, cost=0.65, method=method, compute="all", backend="reference")
    for height, width in ((160, 160), (224, 224), (128, 256), (320, 160), (160, 160)):
        pruned = measured(model, height, width, **kwargs)
        whole = measured(make(), height, width, **kwargs)
        assert pruned / whole == pytest.approx(0.65, abs=0.012)


def test_a_size_is_solved_once() -> None:
    model = ztp.prune_(timm_model(), cost=0.65)
    asked: list[int] = []
    sizes = pruned_blocks(model)[0].sizes
    assert sizes is not None
    solve = sizes.solve
    assert solve is not None
    sizes.solve = lambda plan, patches: asked.append(patches) or solve(plan, patches)  # type: ignore[func-returns-value]
    for side in (224, 160, 224, 192, 224):
        model(torch.rand(2, 3, side, side))
    assert asked == [196, 144]


def test_it_is_the_model_of_that_size_pruned() -> None:
    """Each size gives what pruning a model of that size gives, to the bit."""
    model = ztp.prune_(timm_model(), cost=0.65)
    fixed: Any = timm_model()
    fixed.load_state_dict(model.state_dict())
    fixed.set_input_size((224, 224))
    fixed.pos_embed.data = nn.Parameter(_resampled(model, 14))
    ztp.prune_(fixed, cost=0.65)
    images = torch.rand(3, 3, 224, 224)
    assert torch.equal(model(images), fixed(images))


@pytest.mark.parametrize(
    ("method", "cost", "pruned_at", "side"),
    [
        ("fold", 0.8, 10, 4),  # starts at an earlier block than at the size that it was pruned at
        ("tome", 0.9, 10, 6),
        ("mctf-fold", 0.6, 10, 4),
        ("mctf", 0.6, 3, 8),  # has a stage at the last block, which acts before its attention
        ("mctf", 0.6, 8, 3),
    ],
)
def test_stages_at_other_blocks(method: str, cost: float, pruned_at: int, side: int) -> None:
    model: Any = timm_model()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.2)
    model.set_input_size((16 * pruned_at,) * 2)
    fixed = ztp.pruned(model, cost=1.0)
    fixed.set_input_size((16 * side,) * 2)
    ztp.prune_(model, cost=cost, method=method)
    ztp.prune_(fixed, cost=cost, method=method)
    images = torch.rand(2, 3, 16 * side, 16 * side)
    torch.testing.assert_close(model(images), fixed(images), rtol=1e-5, atol=1e-5)


def test_only_a_model_of_any_size_has_pruned_blocks_before_its_first_stage() -> None:
    fixed = timm.create_model("vit_tiny_patch16_224", depth=12)
    open_ = timm.create_model("vit_tiny_patch16_224", depth=12, dynamic_img_size=True)
    for model, first in ((fixed, 5), (open_, 2)):
        ztp.prune_(model, cost=0.65)
        assert [block.task.block for block in pruned_blocks(model)] == list(range(first, 13))


def _resampled(model: Any, side: int) -> torch.Tensor:
    from timm.layers import resample_abs_pos_embed

    table: torch.Tensor = resample_abs_pos_embed(
        model.pos_embed, (side, side), num_prefix_tokens=model.num_prefix_tokens
    )
    return table.detach()


def test_everything_else_works_at_another_size_too() -> None:
    model: Any = timm_model()
    images = torch.rand(2, 3, 224, 224)
    ztp.prune_(model, cost=0.65, method="tome")
    stages = ztp.trace(model, images)
    assert {stage.fate.shape[1] for stage in stages} == {196}
    with ztp.patches_left(model) as left:
        features = model.forward_features(images)
    assert features.shape[1] == left[-1].shape[1] + model.num_prefix_tokens
    ztp.prune_(model, cost=0.65, outputs="grid")
    assert model.forward_features(images).shape[1] == 196 + model.num_prefix_tokens
    quick = ztp.pruned(model, gmacs=0.03)
    assert quick(torch.rand(1, 3, 64, 64)).shape == (1, 5)  # it costs less unpruned


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (ztp.Schedule((ztp.Stage(2, keep=0.5),)), "budget.*cost=0.65"),
        (ztp.Schedule((ztp.Stage(2, similar=30),), ztp.methods.Fold()), "budget"),
    ],
)
def test_stages_without_a_budget_are_refused(schedule: ztp.Schedule, why: str) -> None:
    model = ztp.prune_(timm_model(), schedule)
    model(torch.rand(1, 3, 160, 160))
    with pytest.raises(ValueError, match=f"100 patches, got 196: .*{why}"):
        model(torch.rand(1, 3, 224, 224))


def test_what_cannot_be_met_is_refused() -> None:
    model = ztp.prune_(timm_model(), cost=0.5, method="tome")
    with pytest.raises(ValueError, match=r"100 patches, got 4: .*tome"):
        model(torch.rand(1, 3, 32, 32))
    edited = ztp.schedule_for(model, cost=0.65)
    edited = replace(edited, stages=edited.stages[:1])
    ztp.prune_(model, edited)
    with pytest.raises(ValueError, match=r"not the .* of the budget"):
        model(torch.rand(1, 3, 224, 224))
    images = torch.rand(4, 3, 160, 160)
    ztp.prune_(model, ztp.schedule_for(model, cost=0.8, method="ats", images=images))
    with pytest.raises(ValueError, match="depends on the images"):
        model(torch.rand(1, 3, 224, 224))


def test_a_schedule_keeps_its_budget() -> None:
    model: Any = timm_model()
    schedule = ztp.schedule_for(model, cost=0.65)
    again = ztp.Schedule.from_json(schedule.to_json())
    assert again == schedule
    assert (again.budget, again.patches) == (ztp.Budget(cost=0.65), 100)
    assert schedule.by("tome").budget is None
    plain = ztp.Schedule.from_json(schedule.one_line())
    assert plain == schedule
    assert plain.budget is None
    model.set_input_size((224, 224))
    assert ztp.gmacs(model, again) / ztp.gmacs(model) == pytest.approx(0.65, rel=0.01)
    assert ztp.gmacs(model, plain) / ztp.gmacs(model) > 0.7  # counts alone cost something else
    ztp.prune_(model, again)
    assert ztp.gmacs(model) / ztp.gmacs(ztp.restore_(model)) == pytest.approx(0.65, rel=0.01)


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        ('{"cost": 7}', "cost"),
        ('{"cost": 0.5, "gmacs": 1}', "either"),
        ('{"speed": 2}', '"budget" must'),
        ("3", '"budget" must'),
    ],
)
def test_a_bad_budget_is_refused(budget: str, why: str) -> None:
    text = '{"version": 3, "method": {"name": "fold", "options": {}}, "stages": [], "budget": '
    with pytest.raises(ValueError, match=why):
        ztp.Schedule.from_json(f'{text}{budget}, "patches": 196}}')


_COMPILED = """
import timm, torch, zerotprune as ztp
torch.manual_seed(0)
model = timm.create_model("test_vit", num_classes=5, dynamic_img_size=True, depth=3).eval()
ztp.prune_(model, cost=0.65)
graphs = []
def count(graph, example):
    graphs.append(graph)
    return graph
compiled = torch.compile(model, backend=count, fullgraph=True)
with torch.no_grad():
    for side in (160, 224, 160, 224):
        images = torch.rand(2, 3, side, side)
        assert torch.equal(compiled(images), model(images))
        print(side, len(graphs))
"""


@pytest.mark.skipif(block._COMPILER_IS_OLD, reason="this torch cannot compile pruned models")
def test_compiled_it_has_one_graph_a_size() -> None:
    lines = run_script(_COMPILED)
    assert lines == ["160 1", "224 2", "160 2", "224 2"]


_OLD_COMPILER = """
import timm, torch, zerotprune as ztp
from zerotprune import block
from zerotprune.backbones import ending, patch_embedding
block._COMPILER_IS_OLD = True
block.check_compiler = torch.compiler.assume_constant_result(block.check_compiler)

def untraceable(function):
    def call(*args):
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()
        return function(*args)
    return call

patch_embedding._is_faster = untraceable(patch_embedding._is_faster)
ending.Ending.last_kwargs = untraceable(ending.Ending.last_kwargs)
model = timm.create_model("test_vit", num_classes=5, depth=3).eval()
images = torch.rand(2, 3, 160, 160)
for compute in ("needed", "all"):  # with and without a forward of ours
    ztp.prune_(model, cost=0.65, method="zero-tprune", compute=compute)
    for fullgraph in (True, False):
        torch.compiler.reset()
        try:
            torch.compile(model, backend="eager", fullgraph=fullgraph)(images)
        except RuntimeError as error:
            print(str(error).splitlines()[0])
print(model(images).isfinite().all().item())
"""


def test_an_old_compiler_is_refused() -> None:
    *refusals, runs = run_script(_OLD_COMPILER)
    why = "compiling a pruned model needs torch 2.11 or newer, and this is"
    assert [why in line for line in refusals] == [True] * 4
    assert runs == "True"
