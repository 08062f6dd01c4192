"""Pruned copies that share their weights, in threads; and pruning that fails or meets hooks."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests import hf_families, libraries
from tests.families import build, images_for, same
from tests.nursery import run_script
from zerotprune import surgery
from zerotprune.backbones.timm import TimmBackbone

COSTS = (0.6, 0.7, 0.8)


@pytest.fixture
def model() -> Any:
    return build("deit")


def test_copies_share_every_weight_and_leave_the_model_alone(model: Any) -> None:
    images = images_for(model, 2)
    with torch.inference_mode():
        before = model(images)
        copy = ztp.pruned(model, cost=0.6)
        assert same(model(images), before)
        assert same(copy(images), ztp.prune_(build("deit"), cost=0.6)(images))
    original = dict(model.named_parameters()) | dict(model.named_buffers())
    shared = dict(copy.named_parameters()) | dict(copy.named_buffers())
    assert original.keys() == shared.keys()
    assert all(original[name] is shared[name] for name in original)


def test_a_pruned_model_gives_copies_of_other_schedules(model: Any) -> None:
    images = images_for(model, 2)
    ztp.prune_(model, cost=0.8)
    with torch.inference_mode():
        before, copy = model(images), ztp.pruned(model, cost=0.6)
        assert same(model(images), before)
        ztp.restore_(model)
        assert same(copy(images), ztp.prune_(model, cost=0.6)(images))


def test_threads_each_by_its_own_schedule(model: Any) -> None:
    """Compare with the same calls one after the other. Copies are made while others run."""
    images = images_for(model, 2)
    with torch.inference_mode():
        expected: dict[float | None, Tensor] = {None: model(images)}
        expected |= {cost: ztp.prune_(build("deit"), cost=cost)(images) for cost in COSTS}
    wrong: list[object] = []

    def serve(cost: float | None) -> None:
        try:
            with torch.inference_mode():
                for _ in range(6):
                    mine = model if cost is None else ztp.pruned(model, cost=cost)
                    if not same(mine(images), expected[cost]):
                        wrong.append(cost)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=serve, args=(cost,)) for cost in (*COSTS, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("broken", ["parts", "ending"])
def test_a_prune_that_fails_leaves_the_model_as_it_was(
    broken: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = images_for(model, 2)
    ztp.prune_(model, cost=0.8)
    with torch.inference_mode():
        before = model(images)
    real, calls = getattr(TimmBackbone, broken), list[object]()

    def fails(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == (3 if broken == "parts" else 1):
            raise MemoryError
        return real(self, *args, **kwargs)

    monkeypatch.setattr(TimmBackbone, broken, fails)
    with pytest.raises(MemoryError):
        ztp.prune_(model, cost=0.6)
    monkeypatch.undo()
    with torch.inference_mode():
        assert same(model(images), before)
        unpruned = build("deit")(images)
        assert same(ztp.restore_(model)(images), unpruned)


def test_hooks_that_see_other_things_are_told_of(model: Any) -> None:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        raise AssertionError("never called in this test")

    ztp.prune_(model, cost=0.7)  # no word without hooks
    ztp.restore_(model)
    handle = model.blocks[3].register_forward_hook(hook)
    with pytest.warns(UserWarning, match="hooks on block 4"):
        ztp.prune_(model, cost=0.7)
    handle.remove()
    handle = model.blocks[2].attn.register_forward_hook(hook)
    with pytest.raises(ValueError, match=r"blocks\.2\.attn"):
        ztp.prune_(model, cost=0.7)
    handle.remove()
    model.blocks[2].mlp.register_forward_hook(lambda *_: None)  # its parts are called as ever
    ztp.prune_(model, cost=0.7)


MODELS = [
    *((build, images_for, family) for family in (
        "deit", "mae, average pooling", "registers, map", "parallel things", "parallel scaling",
        "eva", "beit, relative bias", "test_vit3",
    )),
    *((libraries.build, libraries.images_for, name) for name in (
        "torchvision", "open_clip", "open_clip, own attention", "open_clip, mean",
        "open_clip, two attention pools", "open_clip, pool after pool", "lvvit",
    )),
    *((hf_families.build, None, family) for family in (
        "vit", "dinov2", "clip, classifier", "siglip", "beit",
    )),
]  # fmt: skip


@pytest.mark.parametrize("method", ["zero-tprune", "fold"])
@pytest.mark.parametrize(("make", "images_of", "name"), MODELS, ids=[case[2] for case in MODELS])
def test_every_hook_is_called_or_refused(make: Any, images_of: Any, name: str, method: str) -> None:
    model = make(name)
    images = {"pixel_values": torch.rand(1, 3, 96, 96)} if images_of is None else images_of(model)

    def run() -> set[str]:
        called.clear()
        with torch.inference_mode():
            model(**images) if images_of is None else model(images)
        return set(called)

    called: list[str] = []
    hooks = {
        path: module.register_forward_hook(lambda *_, path=path: called.append(path))
        for path, module in model.named_modules()
    }
    expected = run()
    stages = (ztp.Stage(2, similar=5), ztp.Stage(3, similar=4))
    for hook in hooks.values():
        hook.remove()
    ztp.prune_(model, ztp.Schedule(stages).by(method))
    hooks = {
        path: module.register_forward_hook(lambda *_, path=path: called.append(path))
        for path, module in model.named_modules()
    }
    refused = set[str]()
    while True:
        try:
            assert run() >= expected - refused
            break
        except ValueError as error:
            path = str(error).split()[2]
            refused.add(path)
            hooks.pop(path).remove()
    assert refused or name == "parallel scaling"  # its block is the attention


# Run-time type checks take no shapes of a trace for numbers.
TRACED = """
import torch, zerotprune as ztp
from fvcore.nn import FlopCountAnalysis
from tests.families import build, images_for

for family in ("deit", "mae, average pooling"):
    model = ztp.prune_(build(family), cost=0.7)
    images, called = images_for(model, 1), []
    counted = FlopCountAnalysis(model, images).unsupported_ops_warnings(False)
    assert counted.uncalled_modules_warnings(False).total() > 0
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda module, *_: called.append(module))
    with torch.inference_mode():
        model(images)
    assert called
model = build("deit")
images = images_for(model, 4)
for method in ("fold", "tome", "zero-tprune", "evit"):
    ztp.prune_(model, cost=0.7, method=method)
    with torch.inference_mode():
        traced = torch.jit.trace(model, images[:1], check_trace=False)
        torch.testing.assert_close(traced(images), model(images))
print("done")
"""


def test_counters_with_hooks_and_traces_of_one_image_work() -> None:
    """fvcore traces a model with hooks on all modules, other counters put hooks on all leaves. A
    trace of one image takes several."""
    assert run_script(TRACED) == ["done"]


def test_another_forward_of_an_attention_is_refused(model: Any) -> None:
    attention, images = model.blocks[3].attn, images_for(model)
    attention.forward = lambda x, **_: 0 * x
    with pytest.raises(ValueError, match=r"forward of blocks\.3\.attn"):
        ztp.prune_(model, cost=0.7)
    del attention.forward
    ztp.prune_(model, cost=0.7)
    attention.forward = lambda x, **_: 0 * x
    with pytest.raises(ValueError, match=r"forward of blocks\.3\.attn"):
        model(images)


def test_another_size_makes_no_stale_schedule(model: Any) -> None:
    ztp.prune_(model, cost=0.6)
    with pytest.raises(ValueError, match="set_input_size"):
        model.set_input_size((128, 128))
    ztp.restore_(model)
    model.set_input_size((128, 128))
    assert ztp.gmacs(ztp.prune_(model, cost=0.6)) / ztp.gmacs(ztp.restore_(model)) < 0.61


@pytest.mark.parametrize("method", ["fold", "zero-tprune", "tome", "evit", "random", "ats"])
@pytest.mark.parametrize("compute", ["needed", "all"])
@pytest.mark.filterwarnings("ignore:var")  # torch's remark on the variance of nothing
def test_an_empty_batch(method: str, compute: Any, model: Any) -> None:
    stage = ztp.Stage(2, similar=4) if method in ("fold", "tome") else ztp.Stage(2, keep=0.5)
    empty: Tensor = images_for(model, 1)[:0]
    with torch.inference_mode():
        expected = model(empty)
        ztp.prune_(model, ztp.Schedule((stage,)).by(method), compute=compute)
        assert model(empty).shape == expected.shape


def test_what_a_schedule_and_a_cost_may_be(model: Any) -> None:
    for value in ("a", True, None, [0.5]):
        with pytest.raises(TypeError, match="keep must be a number"):
            ztp.Stage(1, keep=value)  # type: ignore[arg-type]
    for value in ("a", True, [0.5]):
        with pytest.raises(TypeError, match="cost must be a number"):
            ztp.prune_(model, cost=value)  # type: ignore[arg-type]
    wrong: Any = "Full"
    for call in (ztp.gmacs, partial(ztp.schedule_for, cost=0.6)):
        with pytest.raises(ValueError, match=r'convention.*"full".*"paper".*\'Full\''):
            call(model, convention=wrong)
    with pytest.raises(ValueError, match=r"rounds.*1000, got 1000000000"):
        ztp.Stage(1, keep=0.5, rounds=10**9)
    assert surgery.current_plan(model) is None
