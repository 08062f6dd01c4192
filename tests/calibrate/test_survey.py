"""The survey: divergences and variances against NumPy, the graph of the model, rounds needed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import oracle
from zerotprune import Schedule, Stage, prune_
from zerotprune.calibrate.survey import ROUNDS, BlockSurvey, look_at, rounds_needed, survey
from zerotprune.data import demo
from zerotprune.schedule import papers_rounds


def graphs(images: int, heads: int, tokens: int, sharp: float = 2.0) -> Tensor:
    return (sharp * torch.randn(images, heads, tokens, tokens)).softmax(dim=-1)


def twin(graph: oracle.Floats, prefix: int, rounds: int, cls: bool) -> oracle.Floats:
    """Return the oracle's importance, scaled to sum 1."""
    weight = math.sqrt(graph.shape[-1]) if cls else 1.0
    importance = oracle.page_rank(graph, prefix, rounds, weight, "eir", None)
    return np.asarray(importance / importance.sum())


@pytest.mark.parametrize(("prefix", "cls"), [(1, True), (2, True), (0, False)])
def test_divergences_and_variances_are_those_of_the_twin(prefix: int, cls: bool) -> None:
    drawn = graphs(5, 3, 12 + prefix)
    actual = look_at(drawn, prefix, cls)
    for number, graph in enumerate(drawn.double().numpy()):
        settled = twin(graph, prefix, 50, cls)
        for at, rounds in enumerate(ROUNDS):
            other = twin(graph, prefix, rounds, cls)
            expected = float((settled * np.log(settled / other)).sum())
            assert actual.divergence[number, at].item() == pytest.approx(
                expected, rel=1e-3, abs=1e-11
            )
        spread = float((settled * np.log(settled * len(settled))).sum())
        assert actual.spread[number].item() == pytest.approx(spread, rel=1e-4)
        for head in range(3):
            start = np.ones(graph.shape[-1])
            start[0] = math.sqrt(len(start)) if cls else 1.0
            score = oracle.vote(graph[head], start / start.sum(), 5)[prefix:]
            variance = ((score / score.mean() - 1) ** 2).mean()
            assert actual.variance[number, 1, head].item() == pytest.approx(variance, rel=1e-3)
    assert actual.divergence[:, 0].min() > 1e-4
    assert actual.counts.sum().item() == 5 * len(ROUNDS) * 12


def test_the_survey_sees_the_graph_that_the_model_attends_by() -> None:
    """Compare with timm's own unfused attention, its weights caught on the way."""
    model: Any = demo.model()
    images, labels = demo.images(11, seed=3)
    batches = [(images[:10], labels[:10], torch.arange(10)), (images[10:], labels[10:], labels)]
    blocks = survey(model, batches)
    caught: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: caught.append(out))
    with torch.inference_mode():
        model(images)
    assert len(blocks) == len(caught) == len(model.blocks)
    for block, weights in zip(blocks, caught, strict=True):
        expected = look_at(weights.clone(), model.num_prefix_tokens, cls=True)
        assert len(block.spread) == len(images)
        for actual, other in zip(block[:3], expected[:3], strict=True):
            torch.testing.assert_close(actual, other, rtol=1e-3, atol=1e-8)
        torch.testing.assert_close(
            block.counts.sum(dim=0), expected.counts.sum(dim=0), atol=4, rtol=0
        )


def test_a_survey_leaves_no_trace_and_refuses_what_it_cannot_see() -> None:
    model = demo.model()
    images, labels = demo.images(2, seed=3)
    before = model(images)
    survey(model, [(images, labels, torch.arange(2))])
    assert torch.equal(model(images), before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ValueError, match="no images"):
        survey(model, [])
    prune_(model, Schedule((Stage(3, 0.5),)))
    with pytest.raises(ValueError, match="the model is pruned"):
        survey(model, [(images, labels, torch.arange(2))])


def surveyed(divergence: list[float], spread: float) -> BlockSurvey:
    """Make a survey of two images at 0.5 and 1.5 times the mean."""
    around = torch.tensor([[0.5], [1.5]], dtype=torch.float64)
    nothing = torch.zeros(2, len(ROUNDS), 1)
    return BlockSurvey(around * torch.tensor([*divergence, 0.0], dtype=torch.float64),
                       around[:, 0] * spread, nothing, nothing)  # fmt: skip


def test_rounds_are_the_fewest_that_are_enough() -> None:
    blocks = [
        surveyed([0.5, 0.2, 0.1, 0.05], 1.0),  # 50
        surveyed([0.5, 0.2, 0.1, 0.009], 1.0),  # 30
        surveyed([0.009, 0.2, 0.1, 0.05], 1.0),  # 1
        surveyed([0.5, 0.2, 0.009, 0.001], 1.0),  # 10
        surveyed([0.5, 0.2, 0.009, 0.001], 0.1),  # 30: the same divergence of a flatter block
        surveyed([0.5, 0.009, 0.2, 0.001], 1.0),  # 5
        surveyed([0.005, 0.0, 0.0, 0.0], 1.0),  # 1
    ]
    rows = rounds_needed(blocks, 0.01)
    assert [row.needed for row in rows] == [50, 30, 1, 10, 30, 5, 1]
    assert [row.paper for row in rows] == [(30, 50)] * 3 + [(5, 10)] + [(1, 1)] * 3
    verdicts = ["holds", "holds", "too many", "holds", "too few", "too few", "holds"]
    assert [row.verdict for row in rows] == verdicts
    assert rows[0].divergence[0].value == pytest.approx(0.5)
    assert rows[0].divergence[0].error == pytest.approx(0.25)
    assert [row.needed for row in rounds_needed(blocks, 0.6)] == [1, 1, 1, 1, 10, 1, 1]


def test_the_papers_rounds_is_that_of_a_stage_that_leaves_its_rounds_open() -> None:
    for depth in (4, 5, 6, 7, 12, 24):
        for block in range(1, depth + 1):
            low, high = papers_rounds(block, depth)
            assert low <= Stage(block).votes(depth) <= high
