"""Fold's schedules: one formula for all budgets and depths, and what it refuses."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import timm
import torch

import zerotprune as ztp
from tests.families import build, plain_geometry
from tests.thorough import THOROUGH
from zerotprune.backbones import backbone
from zerotprune.backbones.storing import on_meta
from zerotprune.budgets.solving import solve
from zerotprune.cost import Geometry
from zerotprune.methods import Fold
from zerotprune.plan import Plan

MODELS: dict[str, dict[str, Any]] = {
    "deit_tiny_patch16_224": {},
    "deit_small_patch16_224": {},
    "deit_base_patch16_224": {},
    "vit_small_patch14_dinov2": {"img_size": 518},
    "vit_large_patch16_224": {},  # 24 blocks
}
COSTS = [0.95 - 0.02 * step for step in range(0, 31, 1 if THOROUGH else 3)]


@cache
def outline(name: str) -> Any:
    with on_meta():
        return timm.create_model(name, **MODELS[name])


def left_after(schedule: ztp.Schedule, geometry: Geometry) -> list[int]:
    """Count by hand the patch tokens that leave each block."""
    folded = {stage.block: stage.similar for stage in schedule.stages}
    counts = [geometry.patches]
    for block in range(1, geometry.depth + 1):
        counts.append(counts[-1] - folded.get(block, 0))
    return counts[1:]


@pytest.mark.parametrize("name", MODELS)
def test_budgets_are_met_by_few_stages_of_one_share(name: str) -> None:
    """Stages are evenly spaced up to 10/12 of the depth; the smaller the budget, the earlier the
    first."""
    model = outline(name)
    geometry, unpruned = backbone(model).geometry, ztp.gmacs(model)
    assert geometry.depth == (24 if "large" in name else 12)
    schedules = [ztp.schedule_for(model, cost=cost) for cost in COSTS]
    for cost, schedule in zip(COSTS, schedules, strict=True):
        assert schedule.method == Fold()
        assert ztp.gmacs(model, schedule) == pytest.approx(cost * unpruned, rel=0.01)
        blocks = [stage.block for stage in schedule.stages]
        assert len(blocks) == (5 if cost > 0.55 else 7 if cost < 0.45 else len(blocks))
        assert blocks[-1] == geometry.depth * 10 // 12
        gaps = [after - before for before, after in pairwise(blocks)]
        assert max(gaps) - min(gaps) <= 1
        left = [geometry.patches, *left_after(schedule, geometry)]
        shares = []
        for stage in schedule.stages:
            assert (stage.keep, stage.rounds) == (1, None)
            assert 0 < stage.similar <= left[stage.block - 1] // 2
            shares.append((stage.similar, left[stage.block - 1]))
        share = 1 - (left[-1] / geometry.patches) ** (1 / len(shares))
        assert all(abs(gone - share * before) <= 1.5 for gone, before in shares)
    firsts = [schedule.stages[0].block for schedule in schedules]
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[0] == geometry.depth // 2
    assert firsts[-1] <= geometry.depth // 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stages", [1, 3])
def test_few_stages_meet_the_budget_too(name: str, stages: int) -> None:
    model = outline(name)
    method = Fold(stages=stages)
    cost = 0.65 if stages > 1 else 0.8
    schedule = ztp.schedule_for(model, cost=cost, method=method)
    assert schedule.method == method
    assert len(schedule.stages) == stages
    assert ztp.gmacs(model, schedule) == pytest.approx(cost * ztp.gmacs(model), rel=0.01)
    Plan(schedule, backbone(model).geometry).check()


def test_large_grids_are_weighed_by_sampled_rows() -> None:
    """Fused attention shows no columns; up to 256 patches, all rows are looked at."""
    for side, importance in ((16, "both"), (17, "rows")):
        geometry = plain_geometry(6, side, 1, 48)
        assert Fold().bind(torch.nn.Identity(), [2], geometry).importance == importance
        stage = ztp.Stage(2, similar=9)
        assert Fold().macs(stage, side**2, geometry) == Fold(importance).macs(
            stage, side**2, geometry
        )
    assert Fold("cls").bind(torch.nn.Identity(), [2], geometry).importance == "cls"


def test_more_than_half_of_the_tokens_at_once_is_refused_with_the_number() -> None:
    model = build("deit")  # 36 patches
    half = ztp.Schedule((ztp.Stage(2, similar=18), ztp.Stage(4, similar=9)), Fold())
    ztp.prune_(model, half)
    for stages, message in (
        ([(2, 19)], "block 2 .*36 .*got 19"),
        ([(2, 18), (4, 10)], "block 4 .*18 .*got 10"),
    ):
        schedule = ztp.Schedule(tuple(ztp.Stage(b, similar=n) for b, n in stages), Fold())
        with pytest.raises(ValueError, match=message):
            ztp.prune_(ztp.restore_(model), schedule)


@pytest.mark.parametrize(
    ("depth", "share", "message"),
    [
        (
            3,
            0.98,
            r"at least 0\.001251 pruned; .*nearest is 0\.0019",
        ),
        (
            3,
            1.2,
            r"fold: .*0\.001956 unpruned and at least 0\.001251 pruned$",
        ),
        (
            3,
            0.3,
            r"fold: .*0\.001956 unpruned and at least 0\.001251 pruned$",
        ),
        (1, 0.9, "fold has no schedule for this model"),  # its only block is the last one
    ],
)
def test_budgets_that_nine_tokens_cannot_meet(depth: int, share: float, message: str) -> None:
    """If nothing folded is nearest to a budget, something may still be folded."""
    geometry = plain_geometry(depth, 3, 1, 64)
    unpruned = Plan(ztp.Schedule(), geometry).gmacs()
    with pytest.raises(ValueError, match=message):
        solve(
            Fold(),
            geometry,
            share * unpruned,
            unpruned,
            lambda schedule: Plan(schedule, geometry).price(),
        )


def test_what_else_it_refuses() -> None:
    geometry = plain_geometry(6, 6, 0, 48)
    with pytest.raises(ValueError, match="drops none: leave keep at 1"):
        Plan(ztp.Schedule((ztp.Stage(2, 0.9, 3),), Fold()), geometry).check()
    with pytest.raises(ValueError, match="needs a CLS token"):
        Plan(ztp.Schedule((ztp.Stage(2, similar=3),), Fold("cls")), geometry).check()
    with pytest.raises(ValueError, match=r"stages must be at least 1.* got 0"):
        Fold(stages=0)
    for wrong in (-0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="of_partner"):
            Fold(of_partner=wrong)
        with pytest.raises(ValueError, match="proportional"):
            Fold(proportional=wrong)
