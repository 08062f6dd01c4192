"""One stage of each rival, worked out by hand; counts and edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import timm
import torch

import zerotprune as ztp
from tests.families import images_for, plain_geometry, stirred
from tests.methods.rivals import merging, sight, twin
from zerotprune.method import Method, Seen
from zerotprune.methods import ATS, DiffRate, EViT, ToMe, TopK
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.graph import DenseGraph
from zerotprune.tokens import Reduction, Tokens, reduce_tokens


def make_seen(
    keys: list[list[float]] | None = None,
    cls: list[float] | None = None,
    values: list[float] | None = None,
    x: list[list[float]] | None = None,
) -> Seen:
    """Make what a block with one head and a CLS token saw; what is left out is all ones."""
    count = next(len(rows) for rows in (keys, cls, values, x) if rows is not None)
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
    return reduction, reduce_tokens(seen.tokens, reduction, seen.prefix)


def test_tome_by_hand() -> None:
    # CLS is first, so patches 1 and 3 are in A, and 0, 2, 4 in B.
    keys = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [1.0, 1.0]]
    x = [[0.0, 2.0], [4.0, 6.0], [1.0, 1.0], [3.0, 5.0], [9.0, 9.0]]
    reduction, left = left_by(ToMe(), make_seen(keys, x=x), ztp.Stage(1, similar=2))
    assert reduction.similar is not None
    assert sorted(reduction.similar.tolist()[0]) == [1, 3]
    assert left.source.tolist() == [[0, 2, 4]]
    assert left.x.tolist() == [[[1, 1], [2, 4], [2, 3], [9, 9]]]
    assert left.size is not None
    assert left.size.tolist() == [[1, 2, 2, 1]]
    seen = make_seen(keys, x=x)
    seen = seen._replace(tokens=seen.tokens._replace(size=torch.tensor([[1.0, 3, 1, 1, 1, 1]])))
    _, left = left_by(ToMe(), seen, ztp.Stage(1, similar=2))
    assert left.x[0, 1].tolist() == [1.0, 3.0]  # three parts of patch 0, one of patch 1


def test_tome_merges_the_most_similar_edge_first_and_several_into_one() -> None:
    keys = [[1.0, 0.0], [1.0, 0.3], [0.0, 1.0], [1.0, 0.1], [-1.0, -1.0]]
    one, left = left_by(ToMe(), make_seen(keys), ztp.Stage(1, similar=1))
    assert one.similar is not None
    assert one.similar.tolist() == [[3]]
    assert left.source.tolist() == [[1, 0, 2, 4]]
    both, left = left_by(ToMe(), make_seen(keys), ztp.Stage(1, similar=2))
    assert both.partner is not None
    assert both.partner.tolist() == [[0, 0]]
    assert left.size is not None
    assert left.size.tolist() == [[1, 3, 1, 1]]


def test_evit_by_hand() -> None:
    x = [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [4.0, 8.0]]
    seen = make_seen(cls=[0.25, 0.125, 0.375, 0.0625], x=x)
    reduction, left = left_by(EViT(), seen, ztp.Stage(1, 0.3))  # ⌈1.2⌉ = 2 stay
    assert reduction.keep.tolist() == [[2, 0]]
    assert left.x.tolist() == [[[1, 1], [2, 2], [1, 0], [0.25, 0.625]]]
    assert left.source.tolist() == [[2, 0, 1]]
    assert left.size is None


def test_evit_fuses_in_float32_under_autocast() -> None:
    weight = torch.tensor([[0.0, 0.25, 0.125]])
    x = torch.tensor([[[0.0], [0.0], [1.0], [2 + 2**-12]]])  # bfloat16 would lose the 2⁻¹²
    reduction = Reduction(torch.tensor([[0]]), fused=weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        left = reduce_tokens(Tokens.of(x, prefix=1), reduction, prefix=1)
    assert left.x[0, -1].item() == 0.5 + 2**-15


def test_diffrate_by_hand() -> None:
    x = [[1.0, 0.0], [0.0, 1.0], [0.25, 4.0], [4.0, 8.0], [7.0, 7.0]]
    seen = make_seen(cls=[0.3, 0.2, 0.1, 0.05, 0.15], x=x)
    reduction, left = left_by(DiffRate(), seen, ztp.Stage(1, 0.85, 1))  # ⌊4.25⌋ = 4, 1 merged
    assert reduction.keep.tolist() == [[0, 1, 4]]
    assert reduction.similar is not None
    assert reduction.similar.tolist() == [[2]]
    assert left.x.tolist() == [[[1, 1], [1, 0], [0.125, 2.5], [7, 7]]]
    assert left.size is not None
    cosine = 4 / math.hypot(0.25, 4)
    assert left.size[0].tolist() == pytest.approx([1, 1, 1 + cosine, 1])


def test_diffrate_merges_by_a_plain_mean_whatever_the_sizes() -> None:
    """A host of five patches and two guests count a third each; sizes add by similarity."""
    x = [[3.0, 0.0], [0.0, 3.0], [6.0, 6.0], [-1.0, -1.0]]
    seen = make_seen(cls=[0.4, 0.1, 0.05, 0.2], x=x)
    size = torch.tensor([[1.0, 5.0, 2.0, 4.0, 7.0]], dtype=torch.float64)
    seen = seen._replace(tokens=seen.tokens._replace(size=size))
    _, left = left_by(DiffRate(), seen, ztp.Stage(1, 1.0, 3))
    assert left.x.tolist() == [[[1, 1], [2, 2]]]  # the mean of all four
    assert left.size is not None
    # (0, 3) is at a right angle, (-1, -1) even further away: neither adds anything.
    assert left.size[0].tolist() == pytest.approx([1, 5 + 4 * math.sqrt(0.5)])


def test_ats_by_hand() -> None:
    # Significance 1 : 2 : 3 : 4, cumulated 0.1, 0.3, 0.6, 1.
    seen = make_seen(cls=[0.1, 0.1, 0.3, 0.05], values=[1.0, 2.0, 1.0, 8.0])
    drawn = {1: [2], 2: [1, 3], 4: [1, 2, 3], 40: [0, 1, 2, 3]}
    for samples, expected in drawn.items():
        reduction, left = left_by(ATS(samples), seen, ztp.Stage(1, 0.5))
        assert reduction.valid is not None
        assert reduction.keep[reduction.valid].tolist() == expected
        assert left.valid is not None
        assert left.valid.sum() == 1 + len(expected)
        assert left.source.shape == (1, min(samples, 4))


def test_ats_with_one_token_that_matters() -> None:
    seen = make_seen(cls=[0.0, 0.0, 0.75, 0.0])
    reduction, _ = left_by(ATS(3), seen, ztp.Stage(1, 0.5))
    assert reduction.valid is not None
    assert reduction.keep[reduction.valid].tolist() == [2]


@pytest.mark.parametrize("by", ["cls", "average"])
def test_top_k_by_hand(by: Any) -> None:
    seen = make_seen(cls=[0.05, 0.4, 0.1, 0.2])
    reduction, left = left_by(TopK(by), seen, ztp.Stage(1, 0.5))
    assert reduction.keep.tolist() == [[1, 3]]
    assert left.source.tolist() == [[1, 3]]


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
    """With CLS and a distillation token, a single patch is in A and has no match."""
    options = {"img_size": size, "embed_dim": 48, "num_heads": 3, "depth": 5, "num_classes": 7}
    model: Any = stirred(timm.create_model(name, **options)).double().eval()
    schedule, image = merging(99, 99, 99, 99, 99), images_for(model, 1)
    ztp.prune_(model, schedule.by(ToMe()))
    with torch.inference_mode():
        actual = model(image)[0]
    expected = twin(model, image[0], schedule, ToMe())
    assert len(expected.left[5]) == 1
    np.testing.assert_allclose(actual, expected.logits, rtol=1e-6)


def test_equal_tokens_are_merged_all_the_same() -> None:
    """On a flat image all edges of ToMe are equally good, and none may be taken twice."""
    seen = make_seen(keys=[[1.0, 1.0]] * 9)
    for r in (1, 3, 4):
        reduction, left = left_by(ToMe(), seen, ztp.Stage(1, similar=r))
        assert reduction.similar is not None
        assert set(reduction.similar.tolist()[0]) | set(left.source.tolist()[0]) == set(range(9))
        assert left.size is not None
        assert left.size.sum() == 10
