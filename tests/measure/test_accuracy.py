"""Evaluation: paired errors, interruption, budgets of every method, probes, measured costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import zerotprune as ztp
from tests.families import build, images_for, plain_geometry
from zerotprune.backbones import backbone
from zerotprune.budgets.solving import measured_gmacs
from zerotprune.measure.accuracy import Contender, Mean, Result, Setting, compare
from zerotprune.measure.evaluation import apply_probe, probe_scores
from zerotprune.methods import ATS
from zerotprune.plan import Plan
from zerotprune.shapes import Batch

SCHEDULE = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(3, 0.6)))


@pytest.fixture
def model() -> Any:
    return build("deit")


def some_batches(model: Any, sizes: tuple[int, ...] = (4, 4, 3)) -> list[Batch]:
    images = images_for(model, sum(sizes))
    labels = torch.arange(len(images)) % 7
    index = torch.arange(len(images))
    return list(zip(images.split(sizes), labels.split(sizes), index.split(sizes), strict=True))


def test_mean_and_error_by_hand() -> None:
    mean, error = Mean.of([1, 0, 0, -1, 1, 1], scale=100)
    assert mean == pytest.approx(100 / 3)
    values = torch.tensor([1.0, 0, 0, -1, 1, 1])
    assert error == pytest.approx(100 * float(values.std()) / math.sqrt(6))


def test_hits_are_those_of_the_model_run_alone(model: Any) -> None:
    batches = some_batches(model)
    plain, pruned = compare(model, [Contender("all"), Contender("some", SCHEDULE)], batches)
    images, labels = (torch.cat(part) for part in list(zip(*batches, strict=True))[:2])
    with torch.inference_mode():
        assert plain.hits == (model(images).argmax(-1) == labels).tolist()
        five = model(images).topk(5).indices
        assert plain.hits5 == (five == labels.unsqueeze(-1)).any(-1).tolist()
        ztp.prune_(model, SCHEDULE)
        assert pruned.hits == (model(images).argmax(-1) == labels).tolist()
    assert plain.index == pruned.index == list(range(11))
    assert len(plain.seconds_per_image) == 3


def test_the_model_is_unpruned_afterwards(model: Any) -> None:
    compare(model, [Contender("some", SCHEDULE)], some_batches(model))
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_ctrl_c_is_passed_on_and_the_model_is_unpruned(model: Any) -> None:
    """Images come class by class, so a partial result would say nothing of the whole."""

    def interrupted() -> Iterator[Batch]:
        yield from some_batches(model)[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(model, [Contender("all"), Contender("some", SCHEDULE)], interrupted())
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_measured_cost_counts_the_tokens_that_are_left(model: Any) -> None:
    """Compare with each image run alone, its number of tokens read off the trace."""
    images = images_for(model, 4)
    method = ATS(10)
    schedule = ztp.Schedule((ztp.Stage(2, 0.5), ztp.Stage(3, 0.5)))
    plan = Plan(schedule.by(method), backbone(model).geometry)
    measured = measured_gmacs(model, schedule.by(method), images)
    ztp.prune_(model, schedule.by(method))
    costs = []
    for image in images:
        traces = ztp.trace(model, image.unsqueeze(0))
        kept = [int((stage.fate == 0).sum()) for stage in traces]
        costs.append(plan.gmacs("full", kept))
    assert measured == pytest.approx(sum(costs) / 4)
    assert measured < plan.gmacs()


def test_a_result_of_an_adaptive_method_has_its_measured_cost(model: Any) -> None:
    schedule = ztp.Schedule((ztp.Stage(2, 0.5),))
    batches = some_batches(model)
    (result,) = compare(model, [Contender("ats", schedule.by(ATS(12)))], batches)
    images = torch.cat([batch[0] for batch in batches])
    assert result.gmacs() == pytest.approx(measured_gmacs(model, result.contender.schedule, images))


def features(count: int, classes: int, noise: float) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % classes
    centers = torch.randn(classes, 12, generator=torch.Generator().manual_seed(1))
    return centers[labels] + noise * torch.randn(count, 12), labels


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("probe", ["knn", "linear"])
def test_probes_find_separate_classes(probe: Any, classes: int) -> None:
    train, labels = features(60, classes, 0.1)
    test, truth = features(35, classes, 0.1)
    assert torch.equal(probe_scores(probe, train, labels, test).argmax(-1), truth)


def test_nearest_neighbors_by_brute_force() -> None:
    train, labels = features(40, 5, 2.0)
    test, _ = features(20, 5, 2.0)
    scores = probe_scores("knn", train, labels, test)
    for row, vector in zip(scores, test, strict=True):
        near = torch.cosine_similarity(vector.unsqueeze(0), train)
        expected = torch.zeros(5)
        for at in near.argsort(descending=True)[:10]:
            expected[labels[at]] += math.exp(near[at] / 0.07)
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)


def test_a_probe_replaces_the_hits(model: Any) -> None:
    batches = some_batches(model)
    setting = Setting(keep_outputs=True)
    learned = compare(model, [Contender("all")], batches, setting=setting)[0]
    result = compare(model, [Contender("all")], batches, setting=setting)[0]
    labels = torch.cat([batch[1] for batch in batches])
    apply_probe("knn", learned, result, labels, labels)
    assert all(result.hits)  # each image is its own nearest neighbor


def test_a_probe_needs_vectors() -> None:
    with pytest.raises(ValueError, match="feature vector"):
        probe_scores("knn", torch.randn(4, 3, 5), torch.arange(4), torch.randn(2, 5))


def test_errors_of_one_result() -> None:
    plan = Plan(ztp.Schedule(), plain_geometry(12, 14, 1, 64))
    result = Result(Contender("x"), plan, hits=[True, True, False, True])
    assert result.top1 == 75
    assert result.top1_error == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 4))
