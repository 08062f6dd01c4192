"""The rivals against float64 twins, written from their papers: logits, tokens, draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import zerotprune as ztp
from tests.families import build, images_for
from tests.methods.rivals import (
    CASES,
    DEPTH,
    PLAIN,
    all_cases_in,
    merging,
    promised,
    sight,
    traveling,
    twin,
)
from tests.rival_oracles import (
    ats_draw,
)
from zerotprune.method import Method
from zerotprune.methods import ATS, MCTF, DiffRate, ToMe
from zerotprune.scoring.graph import DenseGraph


@all_cases_in(*PLAIN)
def test_logits_equal_the_twin(family: str, method: Method, schedule: ztp.Schedule) -> None:
    model: Any = build(family, seed=CASES.index((method, schedule))).double()
    images = images_for(model)
    ztp.prune_(model, schedule.by(method))
    with torch.inference_mode():
        logits = model(images)
    for image, actual in zip(images, logits, strict=True):
        expected = twin(model, image, schedule, method).logits
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)


@all_cases_in("deit", "deit distilled")
def test_every_token_equals_the_twin(family: str, method: Method, schedule: ztp.Schedule) -> None:
    """Prefix tokens come first, then the others in order, each with its place and its size."""
    model: Any = build(family, seed=2).double()
    images, prefix = images_for(model), model.num_prefix_tokens
    ztp.prune_(model, schedule.by(method))
    features, traced = traveling(model, images)
    counts = promised(method, schedule)
    assert features.shape[1] == prefix + counts[DEPTH]
    for at, image in enumerate(images):
        expected = twin(model, image, schedule, method)
        alive = torch.ones(features.shape[1], dtype=torch.bool)
        for block, tokens in traced.items():
            left = expected.left[block]
            source = tokens.source[at]
            assert tokens.x.shape[1] == prefix + len(source) == prefix + counts[block]
            if tokens.valid is not None:
                alive = tokens.valid[at]
                assert alive[:prefix].all()
                source = source[alive[prefix:]]
            assert source.tolist() == [token.place for token in left]
            if isinstance(method, (ToMe, DiffRate, MCTF)):
                sizes = [token.size for token in left]
                ours = torch.ones(prefix + len(left)) if tokens.size is None else tokens.size[at]
                assert ours.tolist() == pytest.approx([1] * prefix + sizes, rel=1e-9)
        ours = features[at, alive]
        np.testing.assert_allclose(ours, expected.features, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", [ToMe(), DiffRate()], ids=str)
def test_sizes_in_float64_models_are_not_rounded(method: Method) -> None:
    """log 3 in float32 is 1e-8 off: too much for a model in float64."""
    schedule = merging(9, 9, 0, 3)
    model: Any = ztp.prune_(build("deit").double(), schedule.by(method))
    image = images_for(model, 1)
    with torch.inference_mode():
        actual = model(image)[0]
    expected = twin(model, image[0], schedule, method).logits
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 5, 12, 36, 100, 1000])
def test_ats_draws_what_the_twin_draws(samples: int) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        seen = sight(37, 1, spread=3.0)
        reduction = ATS(samples).reduce(seen, ztp.Stage(2, 0.5))
        assert reduction.valid is not None
        assert isinstance(seen.graph, DenseGraph)
        assert reduction.keep.shape == (2, min(samples, 36))
        for at in range(2):
            paid = seen.graph.weights[at, :, 0, 1:].sum(0) * seen.feature("value")[at, 1:].norm(
                dim=-1
            )
            kept = reduction.keep[at][reduction.valid[at]].tolist()
            assert sorted(kept) == ats_draw(paid.numpy(), samples)
