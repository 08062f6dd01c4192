"""The exact last block: only what the head reads, and the same logits."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import FAMILIES, build, images_for, precise
from tests.thorough import thorough
from zerotprune.backbones import backbone
from zerotprune.backbones.ending import Ending
from zerotprune.methods import ATS, DiffRate, EViT, ToMe, TopK
from zerotprune.plan import Plan

SCHEDULE = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(2, 0.8, 4), ztp.Stage(4, 0.5)))
METHODS = [
    (ztp.ZeroTPrune(), SCHEDULE),
    (ztp.ZeroTPrune(order="i-s"), SCHEDULE),
    (TopK("accumulated"), SCHEDULE),
    (ToMe(), ztp.Schedule(tuple(ztp.Stage(block, similar=4) for block in range(1, 6)))),
    (ToMe(), ztp.Schedule((ztp.Stage(5, similar=9),))),
    (EViT(), ztp.Schedule((ztp.Stage(2, 0.6), ztp.Stage(5, 0.5)))),
    (DiffRate(), ztp.Schedule((ztp.Stage(2, 0.6, 5), ztp.Stage(5, 0.5, 3)))),
    (ATS(), ztp.Schedule((ztp.Stage(1, 0.7), ztp.Stage(3, 0.5)))),
]


@pytest.fixture
def model() -> Any:
    return build("deit")


class Spy(nn.Module):
    """Count the tokens that pass; a hook would make the last block whole."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.counts = inner, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.counts.append(x.shape[1])
        out: Tensor = self.inner(x)
        return out


class Wrapped(nn.Module):
    """A linear layer with a low-rank branch beside it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.low = nn.Linear(inner.in_features, 2)
        self.high = nn.Linear(2, inner.out_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.high(self.low(x))
        return out


def reads_cls(family: str) -> Any:
    """Build the family with a head on its CLS token if it has one: then the last block may be
    short."""
    model: Any = build(family)
    if model.cls_token is not None and getattr(model, "attn_pool", None) is None:
        model.global_pool = "token"
    return precise(model)


def both(
    model: Any, images: Tensor, schedule: ztp.Schedule, method: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the logits of the whole last block and of the exact one, which stays on the model."""
    with torch.inference_mode():
        whole = ztp.prune_(model, schedule.by(method or schedule.method), compute="all")(images)
        assert "forward" not in model.__dict__
        return whole, ztp.prune_(model, schedule.by(method or schedule.method))(images)


def close(actual: Tensor, expected: Tensor) -> None:
    exact = actual.dtype == torch.float64
    torch.testing.assert_close(
        actual, expected, rtol=1e-10 if exact else 1e-4, atol=1e-10 if exact else 1e-5
    )


#: one of each kind of attention
KINDS = ["deit", "qk norm", "eva-02, rotary", "beit, relative bias", "parallel scaling"]


@pytest.mark.parametrize(
    ("family", "fused"),
    [
        *((family, True) for family in FAMILIES),
        *(pytest.param(family, False, marks=() if family in KINDS else thorough)
          for family in FAMILIES),
    ],
)  # fmt: skip
def test_the_same_logits_from_fewer_tokens(family: str, fused: bool) -> None:
    model = reads_cls(family)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    model.norm = spy = Spy(model.norm)
    depth, prefix = len(model.blocks), model.num_prefix_tokens
    schedule = ztp.Schedule(tuple(s for s in SCHEDULE.stages if s.block < depth))
    whole, exact = both(model, images_for(model), schedule)
    close(exact, whole)
    assert spy.counts[0] > prefix
    if model.global_pool == "token":
        assert spy.counts[1] == prefix
    else:
        assert spy.counts[1] == spy.counts[0]
        assert "forward" not in model.__dict__


@pytest.mark.parametrize("family", FAMILIES)
def test_as_it_comes_a_family_is_shortened_if_its_head_reads_cls(family: str) -> None:
    model: Any = build(family)
    ztp.prune_(model, ztp.Schedule((ztp.Stage(2, 0.5),)))
    assert ("forward" in model.__dict__) == (model.global_pool == "token")
    assert backbone(model).geometry.pools_patches == (model.global_pool != "token")


@pytest.mark.parametrize(("method", "schedule"), METHODS, ids=str)
@pytest.mark.parametrize("family", ["deit distilled", "eva-02, rotary", "beit, relative bias"])
def test_every_method(family: str, method: Any, schedule: ztp.Schedule) -> None:
    """Cover a stage in the last block, sizes of merged tokens, and padding."""
    model = reads_cls(family)
    whole, exact = both(model, images_for(model, 9), schedule, method)
    close(exact, whole)
    assert "forward" in model.__dict__


@pytest.mark.parametrize(("method", "schedule"), METHODS, ids=str)
def test_forward_features_gives_all_tokens(model: Any, method: Any, schedule: ztp.Schedule) -> None:
    images = images_for(model)
    with torch.inference_mode():
        whole = ztp.prune_(
            model, schedule.by(method or schedule.method), compute="all"
        ).forward_features(images)
        exact = ztp.prune_(model, schedule.by(method or schedule.method))
        assert torch.equal(exact.forward_features(images), whole)
        close(exact(images), exact.forward_head(whole))
    assert whole.shape[1] > 1


@pytest.mark.parametrize("family", ["deit", "eva-02, rotary"])
def test_gated_attention(family: str) -> None:
    model = reads_cls(family)
    for block in model.blocks:
        block.attn.gate = nn.Linear(48, 48).to(model.cls_token)
    close(*both(model, images_for(model), SCHEDULE))


@pytest.mark.parametrize(
    ("family", "layer"),
    [("deit", "attn.qkv"), ("parallel scaling", "in_proj"), ("sapiens2, grouped queries", None)],
)
def test_a_wrapped_layer_keeps_what_was_added(family: str, layer: str | None) -> None:
    model: Any = precise(build(family))
    last = model.blocks[-1]
    for name in [layer] if layer else ["attn.q_proj", "attn.k_proj", "attn.v_proj"]:
        last.set_submodule(name, Wrapped(last.get_submodule(name)).to(model.cls_token))
    whole, exact = both(model, images_for(model), SCHEDULE)
    close(exact, whole)


def test_a_layer_whose_forward_was_replaced_is_called(model: Any) -> None:
    images, last = images_for(model.double()), model.blocks[-1]
    forward = last.attn.qkv.forward
    last.attn.qkv.forward = lambda x: 2 * forward(x)
    close(*both(model, images, SCHEDULE))


def test_no_stage_that_acts_leaves_the_model_alone(model: Any) -> None:
    for schedule in (ztp.Schedule(), ztp.Schedule((ztp.Stage(2),))):
        ztp.prune_(model, schedule)
        assert not any("forward" in module.__dict__ for module in model.modules())


def test_switching_and_restoring(model: Any) -> None:
    inside = sorted(model.__dict__)
    names = list(model.state_dict())
    for compute in ("needed", "all", "needed"):
        ztp.prune_(model, SCHEDULE, compute=compute)
        assert ("forward" in model.__dict__) == (compute == "needed")
        assert list(model.state_dict()) == names
    ztp.restore_(model)
    assert sorted(model.__dict__) == inside


@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_a_twin_runs_on_its_own_weights(model: Any, twin_of: Any) -> None:
    images = images_for(model)
    twin = twin_of(ztp.prune_(model, SCHEDULE))
    assert twin.forward.args[0].model is twin
    with torch.inference_mode():
        expected = model(images)
        assert torch.equal(twin(images), expected)
        for change in (
            twin.head.weight,
            twin.blocks[-1].mlp.fc2.weight,
            twin.patch_embed.proj.bias,
        ):
            before = twin(images)
            change.add_(1.0 + torch.rand_like(change))
            assert not torch.equal(twin(images), before)
        assert torch.equal(model(images), expected)


def test_moved_to_another_precision_after_pruning(model: Any) -> None:
    images = images_for(model)
    expected = ztp.prune_(copy.deepcopy(model).double(), SCHEDULE)(images.double())
    assert torch.equal(ztp.prune_(model, SCHEDULE).double()(images.double()), expected)


def test_another_head_after_pruning(model: Any) -> None:
    images = images_for(model)
    ztp.prune_(model.double(), SCHEDULE)
    model.norm = spy = Spy(model.norm)
    for pool, tokens in ((None, 1), ("avg", 12), ("max", 12), ("", 12), ("token", 1)):
        model.reset_classifier(11, pool)
        with torch.inference_mode():
            actual = model(images.double())
            assert spy.counts[-1] == tokens
            close(actual, model.forward_head(model.forward_features(images.double())))
    assert actual.shape == (2, 11)


@pytest.mark.parametrize("name", ["forward_head", "forward_features", "pool"])
def test_a_method_replaced_on_the_model_is_used(model: Any, name: str) -> None:
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    original = getattr(model, name)
    setattr(model, name, lambda x, **kwargs: original(x, **kwargs).flip(1))
    with torch.inference_mode():
        assert torch.equal(model(images), type(model).forward(model, images))


def test_a_head_that_we_do_not_know_may_read_anything() -> None:
    import timm

    class Custom(timm.models.vision_transformer.VisionTransformer):  # type: ignore[misc]
        def forward_head(self, x: Tensor) -> Tensor:
            return x.mean(dim=1)

    model: Any = Custom(img_size=96, depth=5, embed_dim=48, num_heads=3).eval()
    assert not Plan(SCHEDULE, backbone(model).geometry).prefix_only
    whole, exact = both(model, images_for(model), SCHEDULE)
    assert torch.equal(whole, exact)


@pytest.mark.parametrize("place", ["blocks", "norm", "blocks.4", "blocks.4.attn.qkv"])
def test_a_hook_sees_all_tokens(model: Any, place: str) -> None:
    images, seen = images_for(model.double()).double(), []
    model.norm = spy = Spy(model.norm)
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        expected = model(images)
        hook = model.get_submodule(place).register_forward_hook(
            lambda module, args, out: seen.append(out.shape[1])
        )
        close(model(images), expected)
        hook.remove()
        assert torch.equal(model(images), expected)
    assert seen == [12]
    assert spy.counts == [1, 12, 1]


def test_hooks_elsewhere_change_nothing(model: Any) -> None:
    images, seen = images_for(model), []
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        expected = model(images)
        for module in (model, model.head, model.blocks[3]):
            module.register_forward_hook(lambda module, args, out: seen.append(module))
        assert torch.equal(model(images), expected)
    assert seen == [model.blocks[3], model.head, model]


def test_hooks_are_looked_for_only_after_one_was_put_on(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[bool](), Ending._finds_hooks

    def counting(ending: Ending) -> bool:
        looks.append(look(ending))
        return looks[-1]

    monkeypatch.setattr(Ending, "_finds_hooks", counting)
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        model(images), model(images)
        assert looks == [False]
        with nn.Linear(1, 1).register_forward_hook(print):
            model(images), model(images)
            assert looks == [False, False]
        with model.blocks[-1].mlp.register_forward_hook(lambda *_: None):
            model(images), model(images)
            assert looks == [False, False, True, True]
        model(images), copy.deepcopy(model)(images), model(images)
        assert looks[4:] == [False, False]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("family", ["deit", "eva-02, rotary", "beit, relative bias"])
def test_gradients(family: str, checkpointed: bool) -> None:
    model = reads_cls(family).train()
    images, gradients = images_for(model), []
    for compute in ("all", "needed"):
        twin: Any = ztp.prune_(copy.deepcopy(model), SCHEDULE, compute=compute)
        twin.set_grad_checkpointing(checkpointed)
        twin(images).square().sum().backward()
        gradients.append([weight.grad for weight in twin.parameters()])
    for whole, exact in zip(*gradients, strict=True):
        assert (whole is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(exact, whole, rtol=1e-8, atol=1e-8)


def test_distilled_training_gets_both_heads() -> None:
    model: Any = build("deit distilled").double()
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    model.set_distilled_training(True)
    assert isinstance(model.train()(images), tuple)
    assert isinstance(model.eval()(images), Tensor)


def test_threads_do_not_meet(model: Any) -> None:
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    calls = [model, model.forward_features] * 20
    with torch.no_grad():
        expected = {False: model(images), True: model.forward_features(images)}

    def run(call: Any) -> Tensor:
        with torch.no_grad():
            out: Tensor = call(images)
            return out

    with ThreadPoolExecutor(4) as pool:
        for call, actual in zip(calls, pool.map(run, calls), strict=True):
            assert torch.equal(actual, expected[call is not model])


def test_a_forward_replaced_by_something_else(model: Any) -> None:
    images = images_for(model)
    model.forward = foreign = functools.partial(type(model).forward, model)
    with pytest.raises(TypeError, match=r"forward of .* was replaced"):
        ztp.prune_(model, SCHEDULE)
    assert not any("forward" in block.__dict__ for block in model.blocks)
    ztp.prune_(model, SCHEDULE, compute="all")
    assert model.forward is foreign
    pruned = model(images)
    ztp.restore_(model)
    assert model.forward is foreign
    assert not torch.equal(model(images), pruned)


def test_a_forward_wrapped_after_pruning_outlives_restoring(model: Any) -> None:
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        forward = ztp.prune_(model, SCHEDULE).forward
        model.forward = lambda x: forward(x)
        assert not torch.equal(model(images), before)
        ztp.restore_(model)
        assert torch.equal(model(images), before)


def test_the_signature_stays(model: Any) -> None:
    signature = inspect.signature(model.forward)
    assert inspect.signature(ztp.prune_(model, SCHEDULE).forward) == signature
    assert next(iter(signature.parameters)) == "x"


def test_unknown_values(model: Any) -> None:
    for call in (ztp.prune_, ztp.gmacs):
        with pytest.raises(ValueError, match=r"compute.*'no'"):
            call(model, SCHEDULE, compute="no")  # type: ignore[arg-type]
    assert not any("forward" in module.__dict__ for module in model.modules())
