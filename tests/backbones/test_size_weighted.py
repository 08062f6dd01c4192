"""How sizes get from the last block to the head: copies, threads, compilers, hooks, refusals."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import zerotprune as ztp
from tests.backbones.test_pooling import UNEVEN, model_with, uneven
from tests.families import SMALL, build, images_for, same, stirred
from tests.methods.rivals import traveling
from tests.nursery import run_script
from tests.thorough import THOROUGH
from zerotprune.backbones import backbone
from zerotprune.method import Method, Seen
from zerotprune.methods import ATS, Fold, ToMe
from zerotprune.tokens import Reduction, Tokens

SCHEDULE = ztp.Schedule((ztp.Stage(2, similar=12), ztp.Stage(4, similar=7)), ToMe())


@pytest.fixture
def model() -> Any:
    return build("mae, average pooling")


@pytest.mark.parametrize("head", ["mean, then norm", "attention", "eva, attention", "refined CLS"])
def test_switching_and_restoring(head: str) -> None:
    model = model_with(head)
    images, inside, names = images_for(model), sorted(model.__dict__), list(model.state_dict())
    with torch.inference_mode():
        before = model(images)
        for method in (ToMe(), ztp.ZeroTPrune(), ATS(), Fold(), ToMe()):
            ztp.prune_(model, ztp.Schedule((ztp.Stage(2, similar=5),)).by(method))
            assert ("forward" in model.__dict__) == (method.merges or method.adaptive)
            assert list(model.state_dict()) == names
            assert not torch.equal(model(images), before)
        assert torch.equal(ztp.restore_(model)(images), before)
    assert sorted(model.__dict__) == inside


@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
@pytest.mark.parametrize("head", ["mean, then norm", "attention"])
def test_a_twin_runs_on_its_own_weights(head: str, twin_of: Any) -> None:
    model: Any = ztp.prune_(model_with(head), SCHEDULE)
    images, twin = images_for(model), twin_of(model)
    assert twin.forward.args[0].model is twin
    with torch.inference_mode():
        expected = model(images)
        assert same(twin(images), expected)
        for change in (twin.head.weight, twin.blocks[-1].mlp.fc2.weight):
            before = twin(images)
            change.add_(1.0 + torch.rand_like(change))
            assert not torch.equal(twin(images), before)
        ztp.restore_(twin)
        assert torch.equal(model(images), expected)


def test_threads_do_not_meet(model: Any) -> None:
    """ATS pads each image differently, so mixed-up threads would show."""
    ztp.prune_(model, UNEVEN[-1][1].by(ATS(samples=12)))
    batches = [images_for(model, count) for count in (1, 2, 3, 4)] * 8
    with torch.no_grad():
        expected = [model(images) for images in batches]

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = model(images)
            return out

    with ThreadPoolExecutor(4) as pool:
        for actual, wanted in zip(pool.map(run, batches), expected, strict=True):
            assert torch.equal(actual, wanted)


@uneven
@pytest.mark.parametrize("head", ["mean, then norm", "eva, attention"])
def test_hooks_and_traces_change_nothing(head: str, method: Method, schedule: ztp.Schedule) -> None:
    model = ztp.prune_(model_with(head), schedule.by(method))
    images, seen = images_for(model), list[Any]()
    with torch.inference_mode():
        expected = model(images)
        for module in (model.blocks[-1], model.norm, model.head):
            module.register_forward_hook(lambda module, args, out: seen.append(out))
        assert torch.equal(model(images), expected)
        assert all(isinstance(out, Tensor) for out in seen)
        assert len(ztp.trace(model, images)) == 2
        with ztp.patches_left(model) as left:
            assert torch.equal(model(images), expected)
        features, passed = traveling(model, images)
        assert torch.equal(left[0], passed[4].source)
        assert features.shape[1] == passed[4].x.shape[1]


@uneven
@pytest.mark.parametrize("head", ["mean, then norm", "attention", "deit"])
def test_entered_midway(head: str, method: Method, schedule: ztp.Schedule) -> None:
    model = ztp.prune_(model_with(head), schedule.by(method))
    images, inputs = images_for(model), list[Tensor]()
    hook = model.blocks[0].register_forward_pre_hook(lambda block, args: inputs.append(args[0]))
    midway = backbone(model).midway()
    assert midway is not None
    with torch.inference_mode():
        expected = model(images)
        hook.remove()
        torch.testing.assert_close(midway(inputs[0], 1), expected)


@pytest.mark.parametrize("head", ["mean, then norm", "attention", "eva, attention"])
def test_gradients_with_checkpoints(head: str) -> None:
    model, gradients = model_with(head).train(), []
    images = images_for(model)
    for checkpointed in (False, True):
        twin: Any = ztp.prune_(copy.deepcopy(model), SCHEDULE)
        twin.set_grad_checkpointing(checkpointed)
        twin(images).square().sum().backward()
        gradients.append([weight.grad for weight in twin.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert (plain is None) == (again is None)
        if plain is not None:
            torch.testing.assert_close(again, plain, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("head", ["mean, then norm", "mean and maximum", "attention"])
@pytest.mark.parametrize("cast", [False, True], ids=["bfloat16", "autocast"])
def test_half_precision(head: str, cast: bool) -> None:
    """Compare with the library's own head, in the same precision, over tokens repeated by size."""
    model = ztp.prune_(model_with(head).float(), SCHEDULE)
    images = images_for(model)
    if not cast:
        model, images = model.bfloat16(), images.bfloat16()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
        actual = model(images)
        features, passed = traveling(model, images)
        weight = passed[4].weight()
        assert weight is not None
        repeated = [
            x.repeat_interleave(w.long(), dim=0) for x, w in zip(features, weight, strict=True)
        ]
        expected = type(model).forward_head(model, torch.stack(repeated))
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.05)


def test_another_head_after_pruning() -> None:
    """The head is looked up in every call; one set later gets sizes as well."""
    for first in ("mae, average pooling", "deit"):
        model: Any = ztp.prune_(build(first).double(), SCHEDULE)
        images = images_for(model)
        for pool in ("avg", "token", "max", "avgmax", "avg"):
            model.reset_classifier(11, pool)
            with torch.inference_mode():
                actual = model(images)
                fresh = ztp.prune_(ztp.restore_(copy.deepcopy(model)), SCHEDULE)
                torch.testing.assert_close(actual, fresh(images))
        model.reset_classifier(11, "")
        with pytest.raises(ValueError, match="head was replaced"):
            model(images)


@pytest.mark.parametrize("name", ["forward_features", "forward_head", "pool"])
@pytest.mark.parametrize("family", ["deit", "mae, average pooling"])
def test_a_head_replaced_after_pruning_is_not_trusted(family: str, name: str) -> None:
    model: Any = ztp.prune_(build(family), SCHEDULE)
    original = getattr(model, name)
    setattr(model, name, lambda x, **kwargs: original(x, **kwargs))
    with pytest.raises(ValueError, match="head was replaced"):
        model(images_for(model))


@pytest.mark.parametrize("head", ["attention", "refined CLS", "eva, attention"])
def test_fused_or_not(head: str) -> None:
    model = ztp.prune_(model_with(head), SCHEDULE)
    images = images_for(model)
    with torch.inference_mode():
        expected = model(images)
        model.attn_pool.fused_attn = not model.attn_pool.fused_attn
        torch.testing.assert_close(model(images), expected)


def test_features_by_themselves(model: Any) -> None:
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    features = model.forward_features(images)
    assert features.shape[1] == 1 + 36 - 12 - 7
    with pytest.raises(ValueError, match="forward_head") as refusal:
        model.forward_head(features)
    assert ". " not in str(refusal.value)
    model.reset_classifier(0)
    assert model(images).shape == (2, 48)
    ztp.prune_(model, SCHEDULE.by(ztp.ZeroTPrune()))
    assert model.forward_head(model.forward_features(images)).shape == (2, 48)


class Custom(timm.models.vision_transformer.VisionTransformer):  # type: ignore[misc]
    def forward_head(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


@pytest.mark.parametrize(
    ("kind", "pool"), [(Custom, "avg"), (timm.models.vision_transformer.VisionTransformer, "")]
)
def test_heads_that_cannot_be_taken_apart(kind: Any, pool: str) -> None:
    model = stirred(kind(**SMALL, global_pool=pool)).eval()
    for method, word in ((ToMe(), "merged tokens"), (Fold(), "merged tokens"), (ATS(), "padding")):
        schedule = ztp.Schedule((ztp.Stage(2, similar=5),), method)
        message = f"custom head.*{word}"
        with pytest.raises(ValueError, match=message) as refusal:
            ztp.prune_(model, schedule)
        assert "\n" not in str(refusal.value)
        assert ". " not in str(refusal.value)
        assert not any("forward" in module.__dict__ for module in model.modules())
    for name in ("tome", "fold"):
        with pytest.raises(ValueError, match=r"custom head.*zero-tprune"):
            ztp.prune_(model, cost=0.7, method=name)
    ztp.prune_(model, cost=0.7, method="zero-tprune")


def test_a_pooling_of_somebody_else_s(model: Any) -> None:
    model.pool = lambda x: x[:, 1:].mean(dim=1)
    with pytest.raises(ValueError, match="custom head"):
        ztp.prune_(model, SCHEDULE)
    del model.pool
    model.forward = lambda x: x
    with pytest.raises(TypeError, match="merged into each token"):
        ztp.prune_(model, SCHEDULE)


@dataclass(frozen=True)
class Silent(Method):
    """A method that merges or pads without declaring it."""

    pads: bool = False

    def reduce(self, seen: Seen, stage: ztp.Stage) -> Reduction:
        keep = torch.arange(1, seen.patches).expand(len(seen.tokens.x), -1)
        gone = torch.zeros_like(keep[:, :1])
        if self.pads:
            return Reduction(keep, valid=keep > 1)
        return Reduction(keep, similar=gone, partner=gone + 1, into=gone)


@pytest.mark.parametrize(("pads", "word"), [(False, "merges"), (True, "adaptive")])
def test_a_method_that_does_not_say_that_it_merges(model: Any, pads: bool, word: str) -> None:
    ztp.prune_(model, ztp.Schedule((ztp.Stage(2, 0.9),), Silent(pads)))
    with pytest.raises(ValueError, match=f"Silent .*{word}"):
        model(images_for(model))


def test_weight_of_tokens() -> None:
    x, source = torch.zeros(1, 3, 2, dtype=torch.float64), torch.tensor([[0, 1]])
    size, valid = torch.tensor([[1.0, 3.0, 2.0]]).double(), torch.tensor([[True, True, False]])
    assert Tokens(x, source).weight() is None
    assert Tokens(x, source, size=size).weight(0) is None
    assert torch.equal(Tokens(x, source, size=size).weight(), size)  # type: ignore[arg-type]
    both = Tokens(x, source, size=size, valid=valid)
    for sizes, expected in ((True, [[1, 3, 0]]), (False, [[1, 1, 0]])):
        weight = both.weight(sizes)
        assert weight is not None
        assert weight.tolist() == expected
        assert weight.dtype == torch.float64


SCRIPT = """
from dataclasses import replace
import torch, zerotprune as ztp
from tests.backbones.test_pooling import UNEVEN, model_with
from tests.families import SMALL
from tests.thorough import THOROUGH

SMALL["depth"] = 3
tome, fold, _, ats = UNEVEN
cases = [
    ("compile", "mean and maximum", tome),
    ("compile", "eva, attention", ats),
    ("export", "refined CLS", fold),
]
if THOROUGH:
    cases += [
        ("compile", "refined CLS", fold),
        ("export", "attention", fold),
        ("export", "mean and maximum", ats),
    ]
for how, head, (method, schedule) in cases:
    stages = [replace(stage, block=at) for at, stage in enumerate(schedule.stages, start=1)]
    model = ztp.prune_(model_with(head).float(), ztp.Schedule(tuple(stages), method))
    images, others = torch.randn(2, 3, 3, *model.patch_embed.img_size)
    if how == "compile":
        graphs = []
        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward
        with torch.inference_mode():
            expected = model(images)
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            actual = compiled(images)
            compiled(others)
        assert len(graphs) == 1, (head, method, len(graphs))
        torch._dynamo.reset()
    else:
        with torch.no_grad():
            expected = model(images)
            actual = torch.export.export(model, (images,)).module()(images)
    torch.testing.assert_close(actual, expected)
    print("same:", how, head, method)
"""


def test_one_graph() -> None:
    """Run in a separate process: run-time type checks would break the graph."""
    assert len(run_script(SCRIPT)) == (6 if THOROUGH else 3)
