"""torchvision, open_clip and LV-ViT: right to the last bit, and gone without a trace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import same
from tests.libraries import CLS, DEPTH, NAMES, PATCHES, build, images_for
from tests.thorough import thorough
from zerotprune.backbones import backbone
from zerotprune.block import PrunedBlock, Task
from zerotprune.method import Method
from zerotprune.methods import ATS, Fold, ToMe
from zerotprune.plan import Plan

models = pytest.mark.parametrize("name", NAMES)
DROPS = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(2, 0.8, 4), ztp.Stage(4, 0.5)))
METHODS: list[tuple[Method, ztp.Schedule]] = [
    (ztp.ZeroTPrune(), DROPS),
    (ToMe(), ztp.Schedule(tuple(ztp.Stage(block, similar=4) for block in range(1, DEPTH + 1)))),
    (Fold(), ztp.Schedule((ztp.Stage(2, similar=12), ztp.Stage(4, similar=9)))),
    (ATS(samples=12), ztp.Schedule((ztp.Stage(2, 0.5), ztp.Stage(4, 0.5)))),
]  # fmt: skip
every_method = pytest.mark.parametrize(
    ("method", "schedule"), METHODS, ids=[method.name for method, _ in METHODS]
)


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Turn off the native kernel of `nn.MultiheadAttention` without gradients: it rounds
    differently."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@contextmanager
def block_inputs(model: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    calls: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        block.register_forward_pre_hook(lambda block, args: calls.append((block, args[0])))
        for block in backbone(model).blocks
    ]
    yield calls
    for hook in hooks:
        hook.remove()


@models
def test_parts_make_the_block_bit_for_bit(name: str) -> None:
    model = build(name)
    taken = backbone(model)
    task = Task(ztp.ZeroTPrune(), None, taken.geometry, last=True)
    plan = Plan(ztp.Schedule(), taken.geometry)
    with torch.inference_mode(), block_inputs(model) as calls:
        model(images_for(model))
    assert len(calls) == taken.geometry.depth == DEPTH
    with torch.inference_mode(), without_fast_path():
        for block, x in calls:
            pruned = PrunedBlock(taken, block, task, plan)
            out = pruned.run(x, {})
            assert isinstance(out, Tensor)
            assert torch.equal(out, block(x))
            assert not torch.allclose(out, x)


@models
def test_restoring_and_pruning_nothing(name: str) -> None:
    model = build(name)
    images, names = images_for(model), list(model.state_dict())
    inside = {path: sorted(module.__dict__) for path, module in model.named_modules()}
    with torch.inference_mode():
        before = model(images)
        assert torch.equal(ztp.prune_(model, ztp.Schedule())(images), before)
        for method, schedule in METHODS:
            ztp.prune_(model, schedule.by(method))
            assert list(model.state_dict()) == names
            assert not torch.equal(model(images), before)
        assert torch.equal(ztp.restore_(model)(images), before)
    assert inside == {path: sorted(module.__dict__) for path, module in model.named_modules()}


@models
@pytest.mark.parametrize(
    "twin_of",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["copy", "pickle"],
)
def test_a_twin_runs_on_its_own_weights(name: str, twin_of: Any) -> None:
    model = ztp.prune_(build(name), METHODS[1][1].by(ToMe()))
    images, twin = images_for(model), twin_of(model)
    with torch.inference_mode():
        expected = model(images)
        assert same(twin(images), expected)
        mlp: Any = backbone(twin).blocks[-1].mlp
        next(mlp.parameters()).add_(torch.rand(1))
        assert not torch.equal(twin(images), expected)
        assert torch.equal(model(images), expected)


@pytest.mark.parametrize(
    ("name", "method", "schedule"),
    [
        pytest.param(
            *param.values, *case, id=f"{case[0].name}-{param.values[0]}",
            marks=[*param.marks, *[thorough] * (
                case[0].name not in ("fold", "ats")
                and param.values[0] not in ("torchvision", "open_clip", "lvvit")
            )],
        )
        for case in METHODS for param in NAMES
    ],
)  # fmt: skip
def test_methods_leave_what_they_promise(name: str, method: Method, schedule: ztp.Schedule) -> None:
    """Each method leaves its number of tokens, and a result does not depend on the batch."""
    model = ztp.prune_(build(name).double(), schedule.by(method))
    images = images_for(model, 3)
    with torch.inference_mode():
        with ztp.patches_left(model) as left:
            together = model(images)
        torch.testing.assert_close(together[1:2], model(images[1:2]), rtol=1e-9, atol=1e-9)
    patches = PATCHES
    for stage in schedule.stages:
        patches = method.kept(stage, patches)
    assert left[0].shape == (3, patches) or method.adaptive
    traced = [stage.block for stage in ztp.trace(model, images)]
    blocks = [stage.block for stage in schedule.stages]
    assert traced in (blocks, [block for block in blocks if block < DEPTH])  # or it runs for CLS


@pytest.mark.parametrize("name", CLS)
@every_method
def test_the_exact_last_block(name: str, method: Method, schedule: ztp.Schedule) -> None:
    model = build(name).double()
    images, counts = images_for(model), list[int]()
    with torch.inference_mode():
        whole = ztp.prune_(model, schedule.by(method), compute="all")(images)
        exact = ztp.prune_(model, schedule.by(method))(images)
        torch.testing.assert_close(exact, whole, rtol=1e-9, atol=1e-9)
        norm = model.encoder.ln if hasattr(model, "encoder") else model.ln_post
        inner = norm.forward

        def counting(x: Tensor) -> Any:  # no hook, which is there to see all tokens
            counts.append(x.shape[1])
            return inner(x)

        norm.forward = counting
        model(images)
        del norm.forward
        backbone(model).blocks[-1].register_forward_hook(
            lambda block, args, out: counts.append(out.shape[1])
        )
        torch.testing.assert_close(model(images), whole, rtol=1e-9, atol=1e-9)
    assert counts[0] == 1 < counts[1]


@models
@pytest.mark.parametrize(("method", "schedule"), METHODS[2:], ids=["fold", "ats"])
def test_entered_midway(name: str, method: Method, schedule: ztp.Schedule) -> None:
    model = build(name).double()
    midway = backbone(model).midway()
    assert midway is not None
    with torch.inference_mode(), block_inputs(model) as calls:
        expected = model(images := images_for(model))
        torch.testing.assert_close(midway(calls[2][1], 3), expected)
        ztp.prune_(model, schedule.by(method))
        torch.testing.assert_close(midway(calls[0][1], 1), model(images))


@models
def test_gradients_flow_as_ever(name: str) -> None:
    """Gradients reach the same weights as before pruning, also with open_clip's checkpointing."""
    model, gradients = build(name), list[dict[str, Tensor]]()
    images, setter = images_for(model), getattr(model, "set_grad_checkpointing", lambda on: None)
    # open_clip 3.3 hands its own attention's blocks more arguments than they take
    can = "own attention" not in name
    for schedule, checkpointed in (
        (ztp.Schedule(), False),
        *((METHODS[2][1], on) for on in (0, 1)),
    ):
        ztp.prune_(model, schedule.by(Fold()), compute="all")
        setter(bool(checkpointed) and can)
        model.zero_grad()
        model(images).square().sum().backward()
        weights = model.named_parameters()
        gradients.append(
            {key: weight.grad.clone() for key, weight in weights if weight.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys() == gradients[2].keys()
    for key, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[2][key], gradient)
