"""The losses against twins in float64, and the tokens that they are about."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray

import zerotprune as ztp
from zerotprune.finetune.training import (
    FinalTokens,
    Watch,
    label_loss,
    logit_loss,
    token_loss,
)
from zerotprune.tracing import patches_left

Array = NDArray[np.float64]


def log_softmax(x: Array) -> Array:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))  # type: ignore[no-any-return]


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape) * 2


def test_labels_by_index_are_smoothed() -> None:
    logits, labels = drawn(5, 7), np.array([0, 3, 6, 3, 1])
    share = np.full((5, 7), 0.1 / 7)
    share[np.arange(5), labels] += 0.9
    wanted = -(share * log_softmax(logits)).sum(axis=1).mean()
    actual = label_loss(torch.tensor(logits), torch.tensor(labels), 0.1)
    assert float(actual) == pytest.approx(wanted, rel=1e-5)


def test_labels_by_shares_are_taken_as_they_are() -> None:
    logits, shares = drawn(4, 6), np.exp(log_softmax(drawn(4, 6, seed=1)))
    wanted = -(shares * log_softmax(logits)).sum(axis=1).mean()
    actual = label_loss(torch.tensor(logits).float(), torch.tensor(shares).float(), 0.1)
    assert float(actual) == pytest.approx(wanted, rel=1e-5)


def test_divergence_from_the_teachers_classes() -> None:
    student, other = drawn(5, 7), drawn(5, 7, seed=1)
    true, ours = log_softmax(other), log_softmax(student)
    wanted = (np.exp(true) * (true - ours)).sum(axis=1).mean()
    assert float(logit_loss(torch.tensor(student), torch.tensor(other))) == pytest.approx(wanted)


def test_distance_of_the_tokens_that_are_left() -> None:
    left, taught = drawn(2, 3, 8), drawn(2, 9, 8, seed=1)
    source = np.array([[4, 0, 8], [1, 7, 2]])
    weight = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 2.0]])
    total = 0.0
    for image in range(2):
        for at in range(3):
            a, b = left[image, at], taught[image, source[image, at]]
            a, b = ((x - x.mean()) / np.sqrt(x.var() + 1e-5) for x in (a, b))
            total += weight[image, at] * ((a - b) ** 2).mean()
    tokens = FinalTokens(*map(torch.tensor, (left, source, weight)))
    actual = token_loss(tokens, torch.tensor(taught))
    assert float(actual) == pytest.approx(total / weight.sum(), rel=1e-5)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 160, 160, generator=torch.Generator().manual_seed(0))


def model_() -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = timm.create_model("test_vit", num_classes=5).eval()
    return made


def test_the_unpruned_model_is_at_no_distance_from_itself(images: torch.Tensor) -> None:
    model = model_()
    watch = Watch(model)
    with watch.looking() as seen:
        model(images)
        model(images)
    first, second = seen
    assert first.source.tolist() == [list(range(100))] * 3
    assert token_loss(first, second.x).item() == 0.0
    assert token_loss(first, second.x.flip(1)).item() > 0.1


@pytest.mark.parametrize("method", ["fold", "zero-tprune", "tome", "ats", "evit"])
def test_what_is_seen_is_what_is_left(method: str, images: torch.Tensor) -> None:
    model = model_()
    schedule = ztp.schedule_for(model, cost=0.6, method=method, images=images)
    ztp.prune_(model, schedule, compute="all")
    with Watch(model).looking() as seen:
        logits = model(images)
    with patches_left(model) as left:
        features = model.forward_features(images)  # type: ignore[operator]
    tokens = seen[-1]
    assert torch.equal(tokens.source, left[-1])
    assert torch.allclose(model.norm(tokens.x), features[:, 1:], atol=1e-6)  # type: ignore[operator]
    assert torch.equal(logits, model(images)), "nothing is left on the model"
    if method in ("fold", "tome"):
        assert tokens.weight.sum(dim=1).tolist() == [100] * 3
    elif method == "ats":
        kept = tokens.weight.sum(dim=1)
        assert float(tokens.weight.min()) == 0 or len(set(kept.tolist())) == 1
    else:
        assert torch.equal(tokens.weight, torch.ones_like(tokens.weight))


def test_a_pooling_head_is_watched_as_well(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=5, global_pool="avg").eval()
    ztp.prune_(model, cost=0.6, compute="all")
    alone = model(images)
    with Watch(model).looking() as seen:
        watched = model(images)
    assert torch.equal(alone, watched)
    assert seen[-1].weight.sum(dim=1).tolist() == [100] * 3
