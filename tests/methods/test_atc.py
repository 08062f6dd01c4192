"""ATC's clusters by hand and against SciPy's, its ties, and its published stages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as tree
from scipy.spatial.distance import squareform
from torch import Tensor

import zerotprune as ztp
from tests.families import plain_geometry
from tests.methods.rivals import sight
from zerotprune.methods import ATC
from zerotprune.methods.atc import Linkage, agglomerate
from zerotprune.tokens import reduce_tokens

LINKAGES: list[Linkage] = ["single", "complete", "average"]


def on_a_line(*points: float) -> Tensor:
    line = torch.tensor([points], dtype=torch.float64)
    return (line.unsqueeze(2) - line.unsqueeze(1)).abs()


@pytest.mark.parametrize(
    ("linkage", "clusters"),
    [
        ("single", [0, 0, 2, 2, 2, 5]),
        ("average", [0, 0, 2, 2, 2, 5]),
        ("complete", [0, 0, 2, 2, 4, 4]),
    ],
)
def test_by_hand(linkage: Linkage, clusters: list[int]) -> None:
    """First 4.75 and 5.5 are joined, then 0 and 2. From 8 to {4.75, 5.5} it is 2.5 at least, 2.875
    on average and 3.25 at most; to 11 it is 3."""
    distance = on_a_line(0, 2, 4.75, 5.5, 8, 11)
    assert agglomerate(distance, 3, linkage).tolist() == [clusters]


def test_the_first_token_stands_for_its_cluster() -> None:
    distance = on_a_line(5, 0, 9, 0.5, 5.25, 9.75, 20)
    assert agglomerate(distance, 3, "average").tolist() == [[0, 1, 2, 1, 0, 2, 6]]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_clusters_are_scipys(linkage: Linkage) -> None:
    torch.manual_seed(0)
    unit = torch.nn.functional.normalize(torch.randn(3, 40, 8, dtype=torch.float64), dim=-1)
    distance = (1 - unit @ unit.transpose(1, 2)).masked_fill(torch.eye(40).bool(), 0)
    for merges in (0, 1, 13, 30, 39):
        ours = agglomerate(distance, merges, linkage).numpy()
        for one, between in zip(ours, distance.numpy(), strict=True):
            found = tree(squareform(between, checks=False), linkage)
            theirs = fcluster(found, 40 - merges, "maxclust")
            firsts = [int(np.flatnonzero(theirs == label)[0]) for label in theirs]
            assert one.tolist() == firsts


@pytest.mark.parametrize("linkage", LINKAGES)
def test_of_equal_distances_the_lowest_indices_count(linkage: Linkage) -> None:
    assert agglomerate(on_a_line(0, 3, 1, 2), 1, linkage).tolist() == [[0, 1, 0, 3]]
    assert agglomerate(torch.ones(1, 5, 5), 3, linkage).tolist() == [[0, 0, 0, 0, 4]]


@pytest.mark.parametrize("value", [1.0, 0.0, math.nan])
@pytest.mark.parametrize("linkage", LINKAGES)
def test_counts_hold_whatever_the_keys_are(linkage: Linkage, value: float) -> None:
    """Keys that are all equal, all 0, or that overflowed."""
    seen = sight(11, 1)
    seen.heads[0].k[0] = value
    for similar in (1, 4, 9, 99):
        stage, method = ztp.Stage(3, similar=similar), ATC(linkage)
        reduction = method.reduce(seen, stage)
        assert reduction.similar is not None
        for kept, gone in zip(reduction.keep.tolist(), reduction.similar.tolist(), strict=True):
            assert len(kept) == method.kept(stage, 10)
            assert sorted(kept + gone) == list(range(10))
        left = reduce_tokens(seen.tokens, reduction, seen.prefix)
        assert left.size is not None
        assert left.size.sum(dim=1).tolist() == [11, 11]


def test_a_budget_keeps_one_share_at_three_blocks() -> None:
    """Int(196 · 0.7), int(196 · 0.7²) and int(196 · 0.7³) tokens after blocks 4, 7 and 10."""
    geometry = plain_geometry(12, 14, 1, 192)
    (dial,) = ATC().dials(geometry)
    schedule = dial(0.3)
    assert schedule is not None
    assert [(stage.block, stage.similar) for stage in schedule.stages] == [
        (4, 59),
        (7, 41),
        (10, 29),
    ]
    last = dial(1)
    assert last is not None
    assert sum(stage.similar for stage in last.stages) == 195
