"""The kernels of merging against float64: attention by sizes, who is folded into whom, means."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.families import build, images_for
from tests.scoring.test_triton import (
    BATCH,
    DEVICE,
    GPU,
    IMAGES,
    PRECISIONS,
    each_once,
    error,
    in_thorough,
    on_a_gpu,
    vectors,
)
from zerotprune import Schedule, Stage, prune_, trace
from zerotprune.method import Method
from zerotprune.methods import Fold, ToMe
from zerotprune.scoring import graph as reference
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.indexing import take
from zerotprune.scoring.scorer import REFERENCE
from zerotprune.scoring.similarity import Folding
from zerotprune.scoring.triton import fused, similarity

CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
LOOSE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def sizes_of(tokens: int) -> Tensor:
    return torch.randint(1, 9, (BATCH, tokens), device=DEVICE).float()


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(
    ("tokens", "precision"), each_once([3, 64, *[70, 90, 150, 197, 209, 256] * GPU, 130])
)
def test_attention_with_columns(tokens: int, sized: bool, precision: torch.dtype) -> None:
    q, k, v = vectors(tokens, precision, width=64 if GPU else 24)
    size = sizes_of(tokens) if sized else None
    heads = Heads(q, k, v, 0.2, True, 0.0, size=size)
    (out,), columns = fused.FusedScorer(strict=True).attention_sums([heads])
    bias = None if size is None else size.double().log()[:, None, None]
    exact = reference.attention_graph(q.double(), k.double(), 0.2, bias)
    assert error(out, exact @ v.double()) < LOOSE[precision]
    assert error(columns.received(), exact.mean(dim=(1, 2)).unsqueeze(1)) < 5e-6
    assert error(columns.row(0), exact[:, :, 0].mean(dim=1, keepdim=True)) < 5e-6
    if size is not None:
        assert (
            error(fused.FusedScorer(strict=True).output(heads), exact @ v.double())
            < (LOOSE[precision])
        )


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("tokens", [75] + [577, 1370] * GPU)
def test_attention_with_padding(tokens: int, precision: torch.dtype) -> None:
    q, k, v = vectors(tokens, precision)
    size = sizes_of(tokens)
    size[:, -3:] = 0  # padding
    heads = Heads(q, k, v, 0.2, True, 0.0, size=size)
    (out,), columns = fused.FusedScorer(strict=True).attention_sums([heads])
    bias = size.double().log()[:, None, None]
    exact = reference.attention_graph(q.double(), k.double(), 0.2, bias)
    assert error(out, exact @ v.double()) < LOOSE[precision]
    assert error(columns.received(), exact.mean(dim=(1, 2)).unsqueeze(1)) < 1e-5
    assert error(columns.row(0), exact[:, :, 0].mean(dim=1, keepdim=True)) < 5e-5
    assert (
        error(fused.FusedScorer(strict=True).output(heads), exact @ v.double()) < (LOOSE[precision])
    )


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize(("sized", "cls"), [(False, True), (True, False)] + [(True, True)] * GPU)
@pytest.mark.parametrize("tokens", [75] + [290, 577, 1370] * GPU)
def test_attention_of_sampled_rows(
    tokens: int, cls: bool, sized: bool, precision: torch.dtype
) -> None:
    q, k, v = vectors(tokens, precision, width=64 if GPU else 24)
    size = None
    if sized:
        size = sizes_of(tokens)
        size[:, -3:] = 0  # padding
    heads = Heads(q, k, v, 0.2, True, 0.0, size=size)
    scorer = fused.FusedScorer(strict=True)
    actual = scorer.sampled_attention([heads], 9, prefix=2, cls=cls)
    bias = None if size is None else size.double().log()[:, None, None]
    exact = reference.attention_graph(q.double(), k.double(), 0.2, bias).mean(dim=1)
    step = (tokens - 2) // 9
    expected = [exact[:, 0]] * cls + [exact[:, 2 + step // 2 :: step].mean(dim=1)]
    for row, precise in zip(actual, expected, strict=True):
        assert error(row, precise) < 5e-6


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_sizes_as_more_width_of_queries_and_keys(precision: torch.dtype) -> None:
    """Many tokens go through fused attention without a bias; padding gets nothing at all."""
    q, k, _ = vectors(300, precision, width=24)
    size = sizes_of(300)
    size[:, 280:] = 0
    wide_q, wide_k = fused.with_sizes(q, k, 0.2, size)
    assert wide_q.shape == wide_k.shape == (*q.shape[:3], 32)
    actual = reference.attention_graph(wide_q, wide_k, 0.2)
    exact = reference.attention_graph(
        q.double(), k.double(), 0.2, size.double().log()[:, None, None]
    )
    assert error(actual, exact) < LOOSE[precision]
    assert not actual[..., 280:].any()


def test_only_the_row_of_cls_is_kept() -> None:
    q, k, v = vectors(20, torch.float32)
    _, actual = fused.FusedScorer(strict=True).attention_sums([Heads(q, k, v, 0.2, True, 0.0)])
    with pytest.raises(ValueError, match="only the row of token 0"):
        actual.row(1)


def costs_of(
    folding: Folding, features: Tensor, weight: Tensor | None, of_partner: float
) -> Tensor:
    """Return the cost of folding each token into its partner, in float64."""
    unit = F.normalize(features.double(), dim=-1)
    cosine = (take(unit, folding.gone) * take(unit, folding.partner)).sum(-1)
    if weight is None:
        return 1 - cosine
    gone, other = (
        weight.double().gather(1, indices) for indices in (folding.gone, folding.partner)
    )
    return (1 - cosine) * (gone + of_partner * other)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("patches", "precision"), each_once([2, 9, 131, *[64, 196, 256, 270, 1369] * GPU, 70])
)
def test_the_same_are_folded(
    patches: int, first: int, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may swap ties, so compare all costs with those of float64."""
    if patches == 70:  # as if they were too many for one tile: the interpreter is slow
        monkeypatch.setattr(similarity, "ONE_TILE", 64)
    tokens = torch.randn(BATCH, patches + 1, 40, device=DEVICE).to(precision)
    features = tokens[:, 1:]
    drawn = torch.rand(BATCH, patches, device=DEVICE)
    for weight, part in ((None, 0.0), (drawn, 0.0), (drawn, 0.25)):
        most = len(range(first, patches, 2))
        for count in {1, most // 2, most} - {0}:
            wide = None if weight is None else weight.double()
            exact = REFERENCE.fold(features.double(), count, wide, part, first)
            plan = fused.FusedScorer().fold(tokens, count, weight, part, first, prefix=1)
            expected = costs_of(exact, features, weight, part)
            torch.testing.assert_close(costs_of(plan, features, weight, part), expected, **CLOSE)
            assert (plan.gone % 2 == first).all()
            assert torch.equal(plan.keep.gather(1, plan.into), plan.partner)
            everyone = torch.cat((plan.keep, plan.gone), dim=1).sort().values
            assert torch.equal(everyone, torch.arange(patches, device=DEVICE).expand(BATCH, -1))
            assert (plan.keep[:, : most - count].diff() > 0).all()


@pytest.mark.parametrize("one_tile", [256, 16])
def test_equal_tokens_are_folded_in_their_order(
    one_tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "ONE_TILE", one_tile)
    features = torch.ones(BATCH, 21, 16, device=DEVICE)
    weight = torch.ones(BATCH, 21, device=DEVICE)
    plan = fused.FusedScorer().fold(features, 4, weight, 0.25, 1)
    assert plan.gone[0].tolist() == [1, 3, 5, 7]
    assert plan.partner[0].tolist() == [0, 0, 0, 0]
    assert plan.keep[0].tolist() == [9, 11, 13, 15, 17, 19, *range(0, 21, 2)]


@pytest.mark.parametrize("keeps_length", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(("tokens", "precision"), each_once([5, 66, 140]))
def test_merged_tokens_are_weighted_means(
    tokens: int, sized: bool, keeps_length: bool, precision: torch.dtype
) -> None:
    count = tokens // 2
    x = torch.randn(BATCH, tokens, 40, device=DEVICE).to(precision)
    size = sizes_of(tokens) if sized else None
    order = torch.stack([torch.randperm(tokens, device=DEVICE) for _ in range(BATCH)])
    gone, keep = order[:, :count], order[:, count:]
    into = torch.randint(0, tokens - count, gone.shape, device=DEVICE)
    into[:, : count // 2] = 0  # many into one
    wide = None if size is None else size.double()
    exact, masses = REFERENCE.merge(x.double(), wide, keep, gone, into, keeps_length)
    actual, total = similarity.merge(x, size, keep, gone, into, keeps_length)
    assert torch.equal(total, masses.float())
    assert error(actual, exact) < LOOSE[precision]


@pytest.mark.parametrize(
    "method", [Fold(), ToMe(), in_thorough(Fold(features="x")), Fold(importance="cls")]
)
def test_a_model_follows_the_reference(method: Method) -> None:
    model = build("deit").to(DEVICE).float()
    images = images_for(model, IMAGES).to(DEVICE).float()
    schedule = Schedule((Stage(1, similar=3), Stage(3, similar=4), Stage(4, similar=2)), method)
    with torch.inference_mode():
        prune_(model, schedule, backend="triton")
        ours, actual = model(images), trace(model, images)
        prune_(model, schedule, backend="reference")
        assert error(ours, model(images).double()) < 1e-5
        for one, other in zip(actual, trace(model, images), strict=True):
            assert torch.equal(one.fate, other.fate)


@on_a_gpu
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_a_full_gpu_gives_the_same_every_time(precision: torch.dtype) -> None:
    """A race would differ between two runs, or from one image alone."""
    model: Any = timm.create_model("deit_tiny_patch16_224", depth=6).eval().cuda().to(precision)
    images = torch.randn(512, 3, 224, 224, device="cuda").to(precision)
    stages = tuple(Stage(block, similar=25) for block in (1, 2, 3, 4))
    prune_(model, Schedule(stages, Fold()), backend="triton")
    with torch.inference_mode():
        first = model(images)
        for _ in range(5):
            assert torch.equal(model(images), first)
        few = model(images[:2])
    torch.testing.assert_close(few, first[:2], atol=5e-2, rtol=5e-2)
