"""The stop of Algorithm 1: as many rounds as one image takes, and refused where it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import zerotprune as ztp
from tests.families import build, images_for
from tests.methods.rivals import sight
from zerotprune.methods.zero_tprune import MOST, vote_until
from zerotprune.scoring.graph import DenseGraph


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 1e-3, 1e-6, 1e-30])
def test_votes_and_rounds_equal_the_twin(epsilon: float) -> None:
    """Alg. 1 in NumPy: s ← Aᵀs, scaled to sum 1, until no head changes by more than ε."""
    for seed in range(5):
        torch.manual_seed(seed)
        graph = sight(13, 1, spread=4.0, batch=1).graph
        assert isinstance(graph, DenseGraph)
        scores, rounds = vote_until(graph, graph.start(), epsilon)
        weights = graph.weights[0].numpy()
        score, taken = np.full((3, 13), 1 / 13), 0
        while True:
            voted = np.stack([a.T @ s for a, s in zip(weights, score, strict=True)])
            voted /= voted.sum(axis=1, keepdims=True)
            change, score, taken = np.abs(voted - score).sum(axis=1).max(), voted, taken + 1
            if change <= epsilon or taken == MOST:
                break
        assert rounds == taken
        np.testing.assert_allclose(scores[0], score, rtol=1e-9)


def test_it_is_a_stage_with_as_many_rounds() -> None:
    """A large ε stops after the first round, a tiny one at the end."""
    model: Any = build("deit").double()
    image = images_for(model, 1).double()
    for epsilon, rounds in ((2.0, 1), (1e-30, MOST)):
        logits = []
        for method, votes in ((ztp.ZeroTPrune(epsilon=epsilon), None), (ztp.ZeroTPrune(), rounds)):
            stages = (ztp.Stage(2, 0.6, 5, votes), ztp.Stage(4, 0.5, 0, votes))
            ztp.prune_(model, ztp.Schedule(stages, method))
            with torch.inference_mode():
                logits.append(model(image))
        torch.testing.assert_close(*logits, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [2, 9])
def test_a_batch_is_refused(batch: int) -> None:
    method = ztp.ZeroTPrune(epsilon=0.01)
    model: Any = ztp.prune_(build("deit"), ztp.Schedule((ztp.Stage(2, 0.6),), method))
    with pytest.raises(ValueError, match="one image at a time, got"):
        model(images_for(model, batch))


def test_an_export_is_refused() -> None:
    method = ztp.ZeroTPrune(epsilon=0.01)
    model: Any = ztp.prune_(build("deit"), ztp.Schedule((ztp.Stage(2, 0.6),), method))
    with pytest.raises(ValueError, match="leave epsilon out"):
        torch.export.export(model, (images_for(model, 1),), strict=False)


@pytest.mark.parametrize("epsilon", [0, -1, float("inf")])
def test_it_is_a_positive_number(epsilon: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon.*number.*{epsilon}"):
        ztp.ZeroTPrune(epsilon=epsilon)
