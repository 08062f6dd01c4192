"""How well a schedule does, on images in memory: against the whole model, and against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.families import FAMILIES, build, images_for
from tests.thorough import thorough
from zerotprune import Schedule, Stage, prune_, restore_
from zerotprune.backbones import backbone
from zerotprune.methods import TopK, ZeroTPrune
from zerotprune.search.objective import Objective, Stack


def stack_of(model: Any, labels: bool = True, batch: int = 2) -> Stack:
    images = images_for(model, 3)
    marks = list(torch.arange(3).split(batch)) if labels else None
    return Stack(list(images.split(batch)), marks)


#: two that are entered in the middle, and two that are not
FEW = ("deit", "deit distilled", "eva-02, rotary", "beit, relative bias")


@pytest.mark.parametrize(
    "family",
    [
        family if family in FEW else pytest.param(family, marks=thorough)
        for family in sorted(FAMILIES)
    ],
)
def test_from_the_middle_is_the_whole_model_bit_for_bit(family: str) -> None:
    model = build(family)
    stack, depth = stack_of(model), len(model.blocks)  # type: ignore[arg-type]
    objective = Objective(model, ZeroTPrune(start="uniform"), stack, memory=1e9)
    assert objective.cached_blocks == (0 if backbone(model).midway() is None else depth - 1)
    for block in (1, 2, depth - 1):
        schedule = Schedule((Stage(block, 0.5, 3),))
        pruned = torch.cat(objective.outputs(schedule))
        prune_(model, schedule.by(ZeroTPrune(start="uniform")))
        with torch.inference_mode():
            whole = torch.cat([model(images) for images in stack.images])
        assert torch.equal(pruned, whole)


def test_trials_run_without_attention_that_plans() -> None:
    model: Any = build("deit")
    seen = []
    model.blocks[-1].register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    before = torch.backends.cuda.cudnn_sdp_enabled()
    objective = Objective(model, ZeroTPrune(), stack_of(model), memory=1e9)
    objective(Schedule((Stage(1, 0.5),)))
    assert seen
    assert not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_plain_families_are_entered_in_the_middle_and_rotary_ones_are_not() -> None:
    assert backbone(build("deit")).midway() is not None
    assert backbone(build("deit distilled")).midway() is not None
    assert backbone(build("eva-02, rotary")).midway() is None
    assert backbone(build("beit, relative bias")).midway() is None


def test_memory_bounds_what_is_kept() -> None:
    model = build("deit")
    stack, geometry = stack_of(model), backbone(model).geometry
    per_block = len(stack) * geometry.tokens * geometry.dim * 4
    schedule = Schedule((Stage(4, 0.5, 3),))
    outputs = []
    for blocks in (0, 2, 4):
        objective = Objective(model, ZeroTPrune(), stack, memory=(blocks + 0.5) * per_block)
        assert objective.cached_blocks == blocks
        outputs.append(torch.cat(objective.outputs(schedule)))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_method_that_remembers_all_blocks_is_run_from_the_first() -> None:
    model, method = build("deit"), TopK("accumulated")
    stack, schedule = stack_of(model), Schedule((Stage(4, 0.5),))
    pruned = torch.cat(Objective(model, method, stack, memory=1e9).outputs(schedule))
    prune_(model, schedule.by(method))
    with torch.inference_mode():
        assert torch.equal(pruned, torch.cat([model(images) for images in stack.images]))


def test_a_model_without_a_head_is_read_by_its_neighbors() -> None:
    """Compare KL and nearest neighbors among the other images with NumPy."""
    model: Any = build("deit")
    model.reset_classifier(0)
    images = images_for(model, 5)
    stack = Stack(list(images.split(2)), list(torch.tensor([0, 1, 0, 1, 1]).split(2)))
    objective = Objective(model, ZeroTPrune(), stack, memory=1e9)
    schedule = Schedule((Stage(1, 0.3, 5),))
    outcome = objective(schedule)

    def unit(features: Tensor) -> Any:
        values = features.double().numpy()
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    with torch.inference_mode():
        unpruned = unit(restore_(model)(images))
        pruned = unit(prune_(model, schedule)(images))
    others = ~np.eye(5, dtype=bool)

    def shares(vectors: Any) -> Any:
        powers = np.where(others, np.exp(vectors @ unpruned.T / 0.07), 0.0)
        return powers / powers.sum(axis=1, keepdims=True)

    wanted, came = shares(unpruned), shares(pruned)
    ratio = np.where(others, wanted, 1) / np.where(others, came, 1)
    kl = (wanted * np.log(ratio)).sum(axis=1)
    np.testing.assert_allclose(outcome.kl.numpy(), kl, rtol=1e-3, atol=1e-5)
    assert outcome.same.tolist() == (wanted.argmax(1) == came.argmax(1)).tolist()
    labels = np.array([0, 1, 0, 1, 1])
    assert outcome.hits is not None
    assert outcome.hits.tolist() == (labels[came.argmax(1)] == labels).tolist()
    assert objective.unpruned().mean_kl == 0


def test_the_measures_against_numpy() -> None:
    model = build("deit")
    stack = stack_of(model)
    objective = Objective(model, ZeroTPrune(), stack, memory=1e9)
    schedule = Schedule((Stage(1, 0.3, 5),))
    outcome = objective(schedule)

    def softmax(logits: Tensor) -> Any:
        values = logits.double().numpy()
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    pruned = softmax(torch.cat(objective.outputs(schedule)))
    restore_(model)
    with torch.inference_mode():
        plain = softmax(torch.cat([model(images) for images in stack.images]))
    wanted = (plain * (np.log(plain) - np.log(pruned))).sum(axis=1)
    np.testing.assert_allclose(outcome.kl.numpy(), wanted, rtol=1e-3, atol=1e-6)
    assert outcome.mean_kl == pytest.approx(wanted.mean(), rel=1e-3)
    same = plain.argmax(axis=1) == pruned.argmax(axis=1)
    assert outcome.same.tolist() == same.tolist()
    assert outcome.hits is not None
    assert outcome.hits.tolist() == (pruned.argmax(axis=1) == np.arange(3)).tolist()
    plain_outcome = objective.unpruned()
    assert plain_outcome.mean_kl == 0
    assert plain_outcome.agreement == 100
