"""DiffRate's published counts: exact at their budgets, in between for others, refused elsewhere."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import timm

import zerotprune as ztp
from tests.families import build, plain_geometry
from tests.thorough import thorough
from zerotprune.backbones import backbone
from zerotprune.backbones.storing import on_meta
from zerotprune.cost import Geometry
from zerotprune.methods import DiffRate
from zerotprune.methods.diffrate import PUBLISHED
from zerotprune.plan import Plan

NAMES = {192: "tiny", 384: "small", 768: "base"}
GEOMETRIES = {width: plain_geometry(12, 14, 1, width) for width in NAMES}
BUDGETS = [(width, gmacs) for width, table in PUBLISHED.items() for gmacs in table]
#: by how much counts miss the budget that they were learned for, where that is more than 1.5 %
OFF = {(192, 0.6): 0.10, (192, 0.7): 0.045}


@cache
def outline(width: int) -> Any:
    with on_meta():
        return timm.create_model(f"deit_{NAMES[width]}_patch16_224")


def tokens(schedule: ztp.Schedule, geometry: Geometry) -> list[int]:
    """Count tokens with CLS after each block's pruning and merging."""
    left, counts = geometry.patches, list[int]()
    stages = {stage.block: stage for stage in schedule.stages}
    for block in range(1, geometry.depth + 1):
        stage = stages.get(block, ztp.Stage(block))
        counts.append(1 + stage.share(left))
        left = DiffRate().kept(stage, left)
        counts.append(1 + left)
    return counts


def published(width: int, gmacs: float) -> list[int]:
    """Return the published counts, limited to the tokens there are: some exceed those before
    them."""
    counts, left = [], 197
    for pair in zip(*(column.split() for column in PUBLISHED[width][gmacs]), strict=True):
        for count in map(int, pair):
            left = min(left, count)
            counts.append(left)
    return counts


def closed_form(width: int, counts: list[int]) -> float:
    """Count GMACs as DiffRate does: patch embedding, blocks and head, without its own matching."""
    total, before = 196 * 768 * width + 1000 * width, 197
    for left in counts[1::2]:
        total += 4 * before * width**2 + 2 * before**2 * width + 8 * left * width**2
        before = left
    return total / 1e9


@pytest.mark.parametrize(("width", "gmacs"), BUDGETS)
def test_the_published_counts_at_what_they_cost(width: int, gmacs: float) -> None:
    model, wanted = outline(width), published(width, gmacs)
    cost = closed_form(width, wanted)
    assert cost == pytest.approx(gmacs, rel=OFF.get((width, gmacs), 0.015))
    schedule = ztp.schedule_for(model, gmacs=cost, method="diffrate")
    assert tokens(schedule, GEOMETRIES[width]) == wanted
    spent = ztp.gmacs(model, schedule)
    assert 1 < spent / cost < 1.01  # its matching
    for budget in (1.004 * spent, 0.996 * spent):
        assert ztp.schedule_for(model, gmacs=budget, method="diffrate") == schedule


@pytest.mark.parametrize(
    "width", [pytest.param(width, marks=() if width == 384 else thorough) for width in NAMES]
)
def test_a_larger_budget_never_leaves_fewer_tokens(width: int) -> None:
    """Go from nothing pruned, through the published counts, to fewer than any of them."""
    geometry, turns = GEOMETRIES[width], 400
    *_, dial = DiffRate().dials(geometry)
    schedules = [dial(turn / turns) for turn in range(turns + 1)]
    counts = [tokens(schedule, geometry) for schedule in schedules if schedule is not None]
    assert len(counts) == turns + 1
    for more, less in pairwise(counts):
        # Here and there a published count is one or two above that of the next higher budget.
        assert all(b <= a + 1 for a, b in zip(more, less, strict=True))
    assert set(counts[0]) == {197}
    assert counts[-1][-1] == 2
    for gmacs in PUBLISHED[width]:
        wanted = published(width, gmacs)
        assert min(sum(map(abs, map(int.__sub__, wanted, row))) for row in counts) < 24
    costs = [Plan(schedule, geometry).price() for schedule in schedules if schedule is not None]
    for high, low in pairwise(costs):
        assert high is not None
        assert low is not None
        assert low <= 1.001 * high  # there is more to match where more is merged


@pytest.mark.parametrize("cost", [0.98, 0.9, 0.75, 0.64, 0.52, 0.4, 0.25])
@pytest.mark.parametrize("width", NAMES)
def test_budgets_between_and_beyond_are_met(width: int, cost: float) -> None:
    model = outline(width)
    schedule = ztp.schedule_for(model, cost=cost, method="diffrate")
    Plan(schedule, backbone(model).geometry).check()
    assert ztp.gmacs(model, schedule) == pytest.approx(cost * ztp.gmacs(model), rel=0.01)


@pytest.mark.parametrize("cost", [0.5, 0.4, 0.3])
@pytest.mark.parametrize("width", NAMES)
def test_below_the_published_counts_it_goes_on_by_a_power_law(width: int, cost: float) -> None:
    """Twin: 196 · (n / 196)^t for the one t at which closed-form costs meet the budget."""
    lowest = np.array(published(width, min(PUBLISHED[width])), dtype=np.float64) - 1
    counts = tokens(
        ztp.schedule_for(outline(width), cost=cost, method="diffrate"), GEOMETRIES[width]
    )
    powers = np.linspace(1, 8, 100_001)[:, None]
    rows = 1 + np.maximum(1, np.rint(196 * (lowest / 196) ** powers))
    assert (rows == counts).all(axis=1).any()
    near = closed_form(width, counts) / ztp.gmacs(outline(width))
    assert near == pytest.approx(cost, rel=0.03)


def test_a_model_of_the_same_geometry_takes_the_same_counts() -> None:
    with on_meta():
        model = timm.create_model("vit_tiny_patch16_224")
    ours = ztp.schedule_for(model, gmacs=0.81, method="diffrate")
    assert ours == ztp.schedule_for(outline(192), gmacs=0.81, method="diffrate")


@pytest.mark.parametrize("family", ["deit", "deit distilled"])
def test_elsewhere_it_points_to_counts_of_ours(family: str) -> None:
    model = build(family)
    with pytest.raises(ValueError, match="diffrate-even"):
        ztp.schedule_for(model, cost=0.7, method="diffrate")
    schedule = ztp.schedule_for(model, cost=0.7, method="diffrate-even")
    assert schedule.method == DiffRate(counts="even")


def test_without_cls_it_says_so_and_points_nowhere() -> None:
    model = build("siglip, no cls")
    for name in ("diffrate", "diffrate-even"):
        with pytest.raises(ValueError, match="no CLS token"):
            ztp.schedule_for(model, cost=0.7, method=name)
