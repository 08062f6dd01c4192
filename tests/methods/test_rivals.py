"""Every rival against its float64 NumPy twin, and all that a method on the socket must be."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import build, images_for, plain_geometry, stirred
from tests.rival_oracles import (
    Attention,
    Forward,
    Token,
    ats,
    ats_draw,
    diffrate,
    evit,
    forward,
    tome,
    top_k,
)
from tests.test_cost import counted_by_torch
from zerotprune.method import Method, Seen
from zerotprune.methods import ATS, DiffRate, EViT, ToMe, TopK
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.graph import DenseGraph, noise
from zerotprune.tokens import Reduction, Tokens, reduced
from zerotprune.tracing import Fate

DEPTH, PATCHES = 5, 36
PLAIN = ["deit", "deit distilled", "deit-3, layer scale", "dinov2, registers"]


def every(*stages: tuple[float, int]) -> ztp.Schedule:
    """A stage at each block from the first on, as (keep, similar)."""
    numbered = enumerate(stages, start=1)
    return ztp.Schedule(tuple(ztp.Stage(block, keep, n) for block, (keep, n) in numbered))


def merging(*counts: int) -> ztp.Schedule:
    return every(*((1.0, r) for r in counts))


TWO = ztp.Schedule((ztp.Stage(2, 0.7), ztp.Stage(4, 0.5)))
DENSE = every((0.9, 0), (0.8, 0), (0.7, 0), (0.6, 0))
LAST = ztp.Schedule((ztp.Stage(1, 0.29), ztp.Stage(5, 0.5)))
MIXED = every((0.9, 4), (1.0, 5), (0.8, 0), (0.75, 3), (0.5, 1))
CASES: list[tuple[Method, ztp.Schedule]] = [
    (ToMe(), merging(3, 3, 3, 3, 3)),
    (ToMe(), merging(16, 1, 0, 5)),
    (ToMe(), merging(99, 99, 99, 99, 99)),
    (ToMe(), ztp.Schedule((ztp.Stage(2, similar=7), ztp.Stage(4, similar=6)))),
    (ToMe(proportional=False), merging(4, 4, 4, 4, 4)),
    (EViT(), TWO),
    (EViT(), DENSE),
    (EViT(), LAST),
    (EViT(), every((0.02, 0), (0.5, 0), (0.4, 0))),
    (DiffRate(), MIXED),
    (DiffRate(), TWO),
    (DiffRate(), merging(4, 4, 4, 4, 4)),
    (DiffRate(), every((0.5, 17))),
    (DiffRate(proportional=False), MIXED),
    (ATS(samples=30), TWO),
    (ATS(samples=12), DENSE),
    (ATS(samples=1), TWO),
    (ATS(samples=500), DENSE),
    (TopK("cls"), TWO),
    (TopK("cls"), DENSE),
    (TopK("average"), DENSE),
    (TopK("average"), every((0.9, 3), (0.5, 2))),
    (TopK("accumulated"), TWO),
    (TopK("accumulated"), DENSE),
    (TopK("random"), DENSE),
    (TopK("random", seed=7), TWO),
]
NAMES = [
    f"{method}-{'-'.join(f'{s.block}:{s.keep:g}/{s.similar}' for s in schedule.stages)}"
    for method, schedule in CASES
]
ONE_EACH = [CASES[at] for at in (1, 4, 6, 9, 13, 14, 18, 21, 22, 24)]
ONE_EACH_NAMES = [str(method) for method, _ in ONE_EACH]
all_cases = pytest.mark.parametrize(("method", "schedule"), CASES, ids=NAMES)
one_each = pytest.mark.parametrize(("method", "schedule"), ONE_EACH, ids=ONE_EACH_NAMES)


def twin(model: Any, image: Tensor, schedule: ztp.Schedule, method: Method) -> Forward:
    stages = {stage.block: stage for stage in schedule.stages}

    def rival(block: int, tokens: list[Token], attention: Attention) -> list[Token]:
        if (stage := stages.get(block)) is None:
            return tokens
        if isinstance(method, ToMe):
            return tome(tokens, attention, stage.similar)
        if isinstance(method, EViT):
            return evit(tokens, attention, stage.keep)
        if isinstance(method, DiffRate):
            return diffrate(tokens, attention, stage.keep, stage.similar)
        if isinstance(method, ATS):
            return ats(tokens, attention, method.samples)
        assert isinstance(method, TopK)
        count = sum(1 for token in tokens if token.patches)
        drawn = noise(count, method.seed * 4096 + block, torch.device("cpu")).double().numpy()
        return top_k(tokens, attention, stage.keep, stage.similar, method.by, drawn)

    return forward(
        {name: value.numpy() for name, value in model.state_dict().items()},
        image.numpy(),
        rival,
        heads=model.blocks[0].attn.num_heads,
        middle=not isinstance(method, TopK),
        proportional=isinstance(method, (ToMe, DiffRate)) and method.proportional,
    )


def travelling(model: Any, images: Tensor) -> tuple[Tensor, dict[int, Tokens]]:
    """The features of a pruned model, and the tokens that left its blocks but the last."""
    found: dict[int, Tokens] = {}

    def look(block: int) -> Any:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tokens):
                found[block] = out

        return hook

    hooks = [
        block.register_forward_hook(look(number))
        for number, block in enumerate(model.blocks, start=1)
    ]
    with torch.inference_mode():
        features = model.forward_features(images)
    for hook in hooks:
        hook.remove()
    return features, found


def promised(method: Method, schedule: ztp.Schedule, patches: int = PATCHES) -> dict[int, int]:
    """How many patch tokens each block hands on."""
    counts, stages = {}, {stage.block: stage for stage in schedule.stages}
    for block in range(1, DEPTH + 1):
        if block in stages:
            patches = method.kept(stages[block], patches)
        counts[block] = patches
    return counts


# ---------------------------------------------------------------- against the twins


@all_cases
@pytest.mark.parametrize("family", PLAIN)
def test_logits_equal_the_twin(family: str, method: Method, schedule: ztp.Schedule) -> None:
    model: Any = build(family, seed=CASES.index((method, schedule))).double()
    images = images_for(model)
    ztp.prune_(model, schedule.by(method))
    with torch.inference_mode():
        logits = model(images)
    for image, found in zip(images, logits, strict=True):
        expected = twin(model, image, schedule, method).logits
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@all_cases
@pytest.mark.parametrize("family", ["deit", "deit distilled"])
def test_every_token_equals_the_twin(family: str, method: Method, schedule: ztp.Schedule) -> None:
    """Prefix tokens first, then the others in their order; each with its place and its size."""
    model: Any = build(family, seed=2).double()
    images, prefix = images_for(model), model.num_prefix_tokens
    ztp.prune_(model, schedule.by(method))
    features, found = travelling(model, images)
    counts = promised(method, schedule)
    assert features.shape[1] == prefix + counts[DEPTH]
    for at, image in enumerate(images):
        expected = twin(model, image, schedule, method)
        alive = torch.ones(features.shape[1], dtype=torch.bool)
        for block, tokens in found.items():
            left = expected.left[block]
            source = tokens.source[at]
            assert tokens.x.shape[1] == prefix + len(source) == prefix + counts[block]
            if tokens.valid is not None:
                alive = tokens.valid[at]
                assert alive[:prefix].all()
                source = source[alive[prefix:]]
            assert source.tolist() == [token.place for token in left]
            if isinstance(method, (ToMe, DiffRate)):
                sizes = [token.size for token in left]
                ours = torch.ones(prefix + len(left)) if tokens.size is None else tokens.size[at]
                assert ours.tolist() == [1] * prefix + sizes
        ours = features[at, alive]
        np.testing.assert_allclose(ours, expected.features, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", [ToMe(), DiffRate()], ids=str)
def test_sizes_in_float64_models_are_not_rounded(method: Method) -> None:
    """log 3 in float32 is 1e-8 off: too much for a model in float64."""
    schedule = merging(9, 9, 0, 3)
    model: Any = ztp.prune_(build("deit").double(), schedule.by(method))
    image = images_for(model, 1)
    with torch.inference_mode():
        found = model(image)[0]
    expected = twin(model, image[0], schedule, method).logits
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


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


# ---------------------------------------------------------------- worked by hand


def sight(tokens: int, prefix: int, spread: float = 1.0, batch: int = 2) -> Seen:
    """What a block with 3 heads might have seen."""
    q, k, v = torch.randn(3, batch, 3, tokens, 4, dtype=torch.float64)
    graph = (spread * q @ k.transpose(-2, -1) / 2).softmax(-1)
    x = torch.randn(batch, tokens, 12, dtype=torch.float64)
    source = torch.arange(tokens - prefix).expand(batch, -1)
    geometry = plain_geometry(12, 6, prefix, 12)
    return Seen(Tokens(x, source), x, [Heads(q, k, v, 0.5, True, 0.0)], DenseGraph(graph), geometry)


def told(
    keys: list[list[float]] | None = None,
    cls: list[float] | None = None,
    values: list[float] | None = None,
    x: list[list[float]] | None = None,
) -> Seen:
    """One head and one prefix token, CLS; what is not told is all ones."""
    count = next(len(given) for given in (keys, cls, values, x) if given is not None)
    ones = torch.ones(1, 1, 1 + count, 2, dtype=torch.float64)
    k, v, stream = ones.clone(), ones.clone(), ones[0].clone()
    graph = torch.full((1, 1, 1 + count, 1 + count), 1 / (1 + count), dtype=torch.float64)
    if keys is not None:
        k[0, 0, 1:] = torch.tensor(keys)
    if cls is not None:
        graph[0, 0, 0] = torch.tensor([1 - sum(cls), *cls])
    if values is not None:
        v[0, 0, 1:, 0], v[0, 0, 1:, 1] = torch.tensor(values), 0
    if x is not None:
        stream[0, 1:] = torch.tensor(x)
    tokens = Tokens(stream, torch.arange(count).unsqueeze(0))
    heads = [Heads(ones, k, v, 1.0, True, 0.0)]
    return Seen(tokens, stream, heads, DenseGraph(graph), plain_geometry(12, 6, 1, 2))


def left_by(method: Method, seen: Seen, stage: ztp.Stage) -> tuple[Reduction, Tokens]:
    reduction = method.reduce(seen, stage)
    return reduction, reduced(seen.tokens, reduction, seen.prefix)


def test_tome_by_hand() -> None:
    # CLS is first, so patches 1 and 3 are in A, and 0, 2, 4 in B.
    keys = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [1.0, 1.0]]
    x = [[0.0, 2.0], [4.0, 6.0], [1.0, 1.0], [3.0, 5.0], [9.0, 9.0]]
    reduction, left = left_by(ToMe(), told(keys, x=x), ztp.Stage(1, similar=2))
    assert reduction.similar is not None
    assert sorted(reduction.similar.tolist()[0]) == [1, 3]
    assert left.source.tolist() == [[0, 2, 4]]
    assert left.x.tolist() == [[[1, 1], [2, 4], [2, 3], [9, 9]]]
    assert left.size is not None
    assert left.size.tolist() == [[1, 2, 2, 1]]
    seen = told(keys, x=x)
    seen = seen._replace(tokens=seen.tokens._replace(size=torch.tensor([[1.0, 3, 1, 1, 1, 1]])))
    _, left = left_by(ToMe(), seen, ztp.Stage(1, similar=2))
    assert left.x[0, 1].tolist() == [1.0, 3.0]  # three parts of patch 0, one of patch 1


def test_tome_merges_the_most_similar_edge_first_and_several_into_one() -> None:
    keys = [[1.0, 0.0], [1.0, 0.3], [0.0, 1.0], [1.0, 0.1], [-1.0, -1.0]]
    one, left = left_by(ToMe(), told(keys), ztp.Stage(1, similar=1))
    assert one.similar is not None
    assert one.similar.tolist() == [[3]]
    assert left.source.tolist() == [[1, 0, 2, 4]]
    both, left = left_by(ToMe(), told(keys), ztp.Stage(1, similar=2))
    assert both.partner is not None
    assert both.partner.tolist() == [[0, 0]]
    assert left.size is not None
    assert left.size.tolist() == [[1, 3, 1, 1]]


def test_evit_by_hand() -> None:
    x = [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [4.0, 8.0]]
    seen = told(cls=[0.25, 0.125, 0.375, 0.0625], x=x)
    reduction, left = left_by(EViT(), seen, ztp.Stage(1, 0.3))  # ⌈1.2⌉ = 2 stay
    assert reduction.keep.tolist() == [[2, 0]]
    assert left.x.tolist() == [[[1, 1], [2, 2], [1, 0], [0.25, 0.625]]]
    assert left.source.tolist() == [[2, 0, 1]]
    assert left.size is None


def test_diffrate_by_hand() -> None:
    x = [[1.0, 0.0], [0.0, 1.0], [0.25, 4.0], [4.0, 8.0], [7.0, 7.0]]
    seen = told(cls=[0.3, 0.2, 0.1, 0.05, 0.15], x=x)
    reduction, left = left_by(DiffRate(), seen, ztp.Stage(1, 0.85, 1))  # ⌊4.25⌋ = 4, 1 merged
    assert reduction.keep.tolist() == [[0, 1, 4]]
    assert reduction.similar is not None
    assert reduction.similar.tolist() == [[2]]
    assert left.x.tolist() == [[[1, 1], [1, 0], [0.125, 2.5], [7, 7]]]
    assert left.size is not None
    assert left.size.tolist() == [[1, 1, 2, 1]]


def test_ats_by_hand() -> None:
    # Significance 1 : 2 : 3 : 4, cumulated 0.1, 0.3, 0.6, 1.
    seen = told(cls=[0.1, 0.1, 0.3, 0.05], values=[1.0, 2.0, 1.0, 8.0])
    drawn = {1: [2], 2: [1, 3], 4: [1, 2, 3], 40: [0, 1, 2, 3]}
    for samples, expected in drawn.items():
        reduction, left = left_by(ATS(samples), seen, ztp.Stage(1, 0.5))
        assert reduction.valid is not None
        assert reduction.keep[reduction.valid].tolist() == expected
        assert left.valid is not None
        assert left.valid.sum() == 1 + len(expected)
        assert left.source.shape == (1, min(samples, 4))


def test_ats_with_one_token_that_matters() -> None:
    seen = told(cls=[0.0, 0.0, 0.75, 0.0])
    reduction, _ = left_by(ATS(3), seen, ztp.Stage(1, 0.5))
    assert reduction.valid is not None
    assert reduction.keep[reduction.valid].tolist() == [2]


@pytest.mark.parametrize("by", ["cls", "average"])
def test_top_k_by_hand(by: Any) -> None:
    seen = told(cls=[0.05, 0.4, 0.1, 0.2])
    reduction, left = left_by(TopK(by), seen, ztp.Stage(1, 0.5))
    assert reduction.keep.tolist() == [[1, 3]]
    assert left.source.tolist() == [[1, 3]]


# ---------------------------------------------------------------- counts and edges


@pytest.mark.parametrize("prefix", [1, 2, 5])
@pytest.mark.parametrize("patches", [2, 3, 4, 7, 36])
def test_counts_are_those_promised(patches: int, prefix: int) -> None:
    seen = sight(prefix + patches, prefix)
    stages = [ztp.Stage(3, similar=r) for r in (0, 1, 2, 5, 99)]
    cases: list[tuple[Method, ztp.Stage]] = [(ToMe(), stage) for stage in stages]
    cases += [(EViT(), ztp.Stage(3, keep)) for keep in (0.01, 0.29, 0.5, 0.99, 1.0)]
    cases += [(ATS(samples), ztp.Stage(3, 0.5)) for samples in (1, 3, 200)]
    cases += [(DiffRate(), ztp.Stage(3, keep, 1)) for keep in (1.0, 0.9) if patches > 2]
    cases += [(TopK("cls"), ztp.Stage(3, keep)) for keep in (0.5, 0.77, 1.0)]
    for method, stage in cases:
        reduction, left = left_by(method, seen, stage)
        count = method.kept(stage, patches)
        assert left.x.shape == (2, prefix + count, 12)
        assert left.source.shape == (2, count)
        assert torch.equal(left.x[:, :prefix], seen.tokens.x[:, :prefix])
        for row in left.source.tolist():
            assert len(set(row)) == len(row)
        assert all(len(set(row)) == len(row) for row in reduction.keep.tolist())


@pytest.mark.parametrize(
    ("method", "stage", "kept"),
    [
        (ToMe(), ztp.Stage(1, similar=8), 28),
        (ToMe(), ztp.Stage(1, similar=19), 18),
        (EViT(), ztp.Stage(1, 0.7), 27),  # ⌈25.2⌉ and the extra token
        (EViT(), ztp.Stage(1, 0.75), 28),
        (EViT(), ztp.Stage(1, 0.98), 36),  # ⌈35.28⌉ is all: nothing to fuse
        (DiffRate(), ztp.Stage(1, 0.7, 5), 20),
        (ATS(20), ztp.Stage(1, 0.7, 5), 20),
        (ATS(100), ztp.Stage(1, 0.7, 5), 36),
        (TopK(), ztp.Stage(1, 0.7, 5), 21),
    ],
)
def test_how_many_of_36_are_kept(method: Method, stage: ztp.Stage, kept: int) -> None:
    assert method.kept(stage, 36) == kept


@pytest.mark.parametrize(
    "name", ["deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"], ids=["1", "2"]
)
@pytest.mark.parametrize("size", [16, 32, 48])
def test_tome_down_to_the_last_patch(name: str, size: int) -> None:
    """With CLS and a distillation token, a single patch is in A and has nobody to be matched to."""
    options = {"img_size": size, "embed_dim": 48, "num_heads": 3, "depth": 5, "num_classes": 7}
    model: Any = stirred(timm.create_model(name, **options)).double().eval()
    schedule, image = merging(99, 99, 99, 99, 99), images_for(model, 1)
    ztp.prune_(model, schedule.by(ToMe()))
    with torch.inference_mode():
        found = model(image)[0]
    expected = twin(model, image[0], schedule, ToMe())
    assert len(expected.left[5]) == 1
    np.testing.assert_allclose(found, expected.logits, rtol=1e-6)


def test_equal_tokens_are_merged_all_the_same() -> None:
    """A flat image: every edge of ToMe is equally good, and none may be taken twice."""
    seen = told(keys=[[1.0, 1.0]] * 9)
    for r in (1, 3, 4):
        reduction, left = left_by(ToMe(), seen, ztp.Stage(1, similar=r))
        assert reduction.similar is not None
        assert set(reduction.similar.tolist()[0]) | set(left.source.tolist()[0]) == set(range(9))
        assert left.size is not None
        assert left.size.sum() == 10


# ---------------------------------------------------------------- nothing to do

IDLE: list[tuple[Method, ztp.Schedule]] = [
    (ToMe(), merging(0, 0, 0, 0, 0)),
    (EViT(), every((1.0, 0), (1.0, 0))),
    (DiffRate(), every((1.0, 0), (1.0, 0))),
    (TopK("cls"), every((1.0, 0), (1.0, 0))),
    (TopK("accumulated"), every((1.0, 0), (1.0, 0))),
]


@pytest.mark.parametrize(("method", "schedule"), IDLE, ids=[str(method) for method, _ in IDLE])
@pytest.mark.parametrize("family", PLAIN)
def test_with_nothing_to_do_no_bit_changes(
    family: str, method: Method, schedule: ztp.Schedule
) -> None:
    model: Any = build(family)
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        ztp.prune_(model, schedule.by(method))
        assert torch.equal(model(images), before)


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        (EViT(), every((0.98, 0), (0.98, 0))),  # all are attentive, only their order changes
        (ATS(samples=10**5), every((0.5, 0), (0.5, 0))),  # every token is drawn
    ],
    ids=str,
)
def test_where_all_tokens_stay_only_rounding_changes(
    method: Method, schedule: ztp.Schedule
) -> None:
    model: Any = build("deit").double()
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        ztp.prune_(model, schedule.by(method))
        torch.testing.assert_close(model(images), before)


def test_ats_samples_at_every_stage_whatever_its_numbers() -> None:
    """ "The stage's own numbers are not used, only its place.\""""
    model: Any = build("deit").double()
    images = images_for(model)
    with torch.inference_mode():
        ztp.prune_(model, ztp.Schedule((ztp.Stage(2, 0.5),)).by(ATS(samples=10)))
        expected = model(images)
        ztp.prune_(model, ztp.Schedule((ztp.Stage(2),)).by(ATS(samples=10)))
        assert torch.equal(model(images), expected)


# ---------------------------------------------------------------- what every method must be


@one_each
@pytest.mark.parametrize("family", ["deit", "deit distilled"])
def test_an_image_does_not_depend_on_its_batch(
    family: str, method: Method, schedule: ztp.Schedule
) -> None:
    model: Any = build(family).double()
    images = images_for(model, 9)  # the CPU takes 8 images at a time
    ztp.prune_(model, schedule.by(method))
    with torch.inference_mode():
        together = model(images)
        for at in (0, 5, 8):
            alone = model(images[at : at + 1])[0]
            torch.testing.assert_close(together[at], alone, rtol=1e-10, atol=1e-12)


@all_cases
@pytest.mark.parametrize("family", ["deit", "deit distilled"])
def test_gmacs_are_what_torch_counts(family: str, method: Method, schedule: ztp.Schedule) -> None:
    """Of a padded batch, where images keep different numbers."""
    for compute in ("all", "needed"):
        model: Any = ztp.prune_(build(family), schedule.by(method), compute=compute)
        closed = round(ztp.gmacs(model, compute=compute) * 1e9)
        assert closed == counted_by_torch(model)


@one_each
def test_copy_and_pickle(method: Method, schedule: ztp.Schedule) -> None:
    model: Any = ztp.prune_(build("deit"), schedule.by(method))
    images = images_for(model)
    assert pickle.loads(pickle.dumps(method)) == method
    assert hash(copy.deepcopy(method)) == hash(method)
    with torch.inference_mode():
        expected = model(images)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(images), expected)
            assert ztp.gmacs(other) == ztp.gmacs(model)
            ztp.restore_(other)
            assert not torch.equal(other(images), expected)
            assert torch.equal(model(images), expected)


@all_cases
@pytest.mark.parametrize("family", ["deit", "deit distilled"])
def test_trace_tells_what_the_twin_kept(
    family: str, method: Method, schedule: ztp.Schedule
) -> None:
    """Of every stage but the last block's, after which no attention sees the patch tokens."""
    model: Any = build(family).double()
    images = images_for(model)
    ztp.prune_(model, schedule.by(method))
    traces = ztp.trace(model, images)
    acting = [stage.block for stage in schedule.stages if stage.prunes and stage.block < DEPTH]
    assert [trace.block for trace in traces] == acting
    for at, image in enumerate(images):
        left = twin(model, image, schedule, method).left
        groups = {patch: [patch] for patch in range(PATCHES)}
        for trace in traces:
            tokens, kept = left[trace.block], trace.where(Fate.KEPT)[at]
            if isinstance(method, EViT):  # the extra token is no patch that was kept: see below
                tokens = [token for token in tokens if token.place in kept]
                assert len(tokens) >= len(left[trace.block]) - 1
            assert kept == sorted(token.place for token in tokens)
            for patch in trace.where(Fate.SIMILAR)[at]:
                groups[int(trace.partner[at, patch])] += groups.pop(patch)
            if not isinstance(method, EViT):
                theirs = {token.place: sorted(token.patches) for token in tokens}
                assert {patch: sorted(groups[patch]) for patch in kept} == theirs


@all_cases
def test_in_a_trace_nobody_returns(method: Method, schedule: ztp.Schedule) -> None:
    """KEPT are as many as tokens were left; EViT's extra token has the place of a fused patch."""
    model: Any = ztp.prune_(build("deit"), schedule.by(method))
    traces, counts = ztp.trace(model, images_for(model)), promised(method, schedule)
    for trace in traces:
        kept = (trace.fate == Fate.KEPT).sum(dim=1)
        if method.adaptive:
            assert (kept >= 1).all()
            assert (kept <= counts[trace.block]).all()
        else:
            assert (kept == counts[trace.block]).all()
    for before, after in pairwise(traces):
        assert torch.equal(before.fate != Fate.KEPT, after.fate == Fate.GONE)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("family", "method", "stage", "says"),
    [
        ("siglip, no cls", EViT(), ztp.Stage(2, 0.5), "EViT ranks by the attention of CLS"),
        ("siglip, no cls", DiffRate(), ztp.Stage(2, 0.5), "DiffRate ranks by the attention of CLS"),
        ("siglip, no cls", ATS(), ztp.Stage(2, 0.5), "ATS scores by the attention of CLS"),
        ("siglip, no cls", TopK("cls"), ztp.Stage(2, 0.5), "needs a CLS token"),
        ("siglip, no cls", ToMe(), ztp.Stage(2, similar=3), "head pools the patch tokens"),
        ("mae, average pooling", ToMe(), ztp.Stage(2, similar=3), "would take merged ones"),
        ("mae, average pooling", EViT(), ztp.Stage(2, 0.5), "would take fused ones"),
        ("mae, average pooling", DiffRate(), ztp.Stage(2, 0.5), "would take merged ones"),
        ("mae, average pooling", ATS(), ztp.Stage(2, 0.5), "would take padding ones"),
        ("deit", ToMe(), ztp.Stage(2, 0.5), "ToMe merges `similar` tokens and drops none"),
        ("deit", ToMe(), ztp.Stage(2, 0.5, 3), "leave keep at 1"),
        ("deit", EViT(), ztp.Stage(2, 0.5, 3), "EViT has no S-stage: leave `similar` at 0"),
        ("deit", DiffRate(), ztp.Stage(2, 0.5, 18), "merges 18 tokens, but only 18 are left"),
        ("deit", ATS(samples=0), ztp.Stage(2, 0.5), "samples must be at least 1, got 0"),
        ("deit", ATS(), ztp.Stage(5, 0.5), "ATS takes no stage at the last block"),
        ("deit", TopK("cls"), ztp.Stage(5, 0.5), "stages go after blocks 1 to 4"),
        ("deit", ToMe(), ztp.Stage(6, similar=3), "stages go after blocks 1 to 5"),
    ],
)
def test_what_a_method_cannot_do_is_refused(
    family: str, method: Method, stage: ztp.Stage, says: str
) -> None:
    model: Any = build(family)
    with pytest.raises(ValueError, match=says) as refusal:
        ztp.prune_(model, ztp.Schedule((stage,)).by(method))
    assert "\n" not in str(refusal.value)
    assert ". " not in str(refusal.value)
    assert not any("forward" in block.__dict__ for block in model.blocks)


# ---------------------------------------------------------------- compiled

SCRIPT = """
import torch, zerotprune as ztp
from tests.families import build, images_for
from tests.methods.test_rivals import ONE_EACH

for method, schedule in ONE_EACH:
    model = ztp.prune_(build("deit distilled"), schedule, method)
    images, others = images_for(model, 3), images_for(model, 3)
    graphs = []
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    with torch.inference_mode():
        expected = model(images)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        found = compiled(images)
        compiled(others)
    assert len(graphs) == 1, (method, len(graphs))
    torch._dynamo.reset()
    torch.testing.assert_close(found, expected)
    print("same:", method)
"""


def test_one_graph() -> None:
    """In a process of its own: the run-time type checks would break the graph."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("same:") == len(ONE_EACH)
