"""The space of a search: every draw is valid and on its budget."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, IntDistribution

from tests.search.studies import SURFACES
from zerotprune import Schedule
from zerotprune.plan import Plan
from zerotprune.search.study import SearchConfig, TrialSampler
from zerotprune.search.surface import MAX_STAGES, Surface


def drawn(data: st.DataObject, surface: Surface[Any], budget: float | None) -> dict[str, Any]:
    """Draw choices by hypothesis."""

    def strategy(of: Any) -> st.SearchStrategy[Any]:
        if isinstance(of, CategoricalDistribution):
            return st.sampled_from(of.choices)
        return (st.integers if isinstance(of, IntDistribution) else st.floats)(of.low, of.high)

    space = surface.space(budget)
    return {name: data.draw(strategy(of), label=name) for name, of in space.items()}


@given(st.data(), st.sampled_from(sorted(SURFACES)), st.floats(0, 1))
@settings(max_examples=150)
def test_every_sample_is_valid_and_costs_the_budget(
    data: st.DataObject, name: str, level: float
) -> None:
    surface = SURFACES[name]
    budget = surface.lowest + level * (surface.unpruned - surface.lowest)
    schedule = surface.propose(drawn(data, surface, budget), budget)
    Plan(schedule.by(surface.method), surface.geometry).check()
    assert len(schedule.stages) <= MAX_STAGES
    assert surface.price(schedule) == pytest.approx(budget, rel=0.01)
    assert Schedule.from_json(schedule.to_json()) == schedule


@given(st.data())
def test_wishes_are_distinct_blocks_in_order(data: st.DataObject) -> None:
    surface = SURFACES["small grid"]
    blocks = [wish.block for wish in surface.wishes(drawn(data, surface, None))]
    assert 1 <= len(blocks) <= MAX_STAGES
    assert all(first < second for first, second in pairwise(blocks))
    assert blocks[0] >= 1
    assert blocks[-1] <= 11


def test_random_samples_differ_and_reach_every_block() -> None:
    surface, seen = SURFACES["deit-ti"], set()
    schedules, budget = set(), 0.7 * surface.unpruned
    space = dict(surface.space(budget))
    config = SearchConfig(60, budget, "top1")
    study = optuna.create_study(sampler=TrialSampler(config, space, None))
    for _ in range(60):
        schedule = surface.propose(study.ask(space).params, budget)
        schedules.add(schedule)
        seen |= {stage.block for stage in schedule.stages}
    assert len(schedules) > 50
    assert seen == set(range(1, 12))


def test_a_budget_out_of_reach_is_refused_with_the_range() -> None:
    surface = SURFACES["deit-ti"]
    for budget in (0.5 * surface.lowest, 1.01 * surface.unpruned):
        with pytest.raises(ValueError, match=f"{surface.unpruned:.4g} unpruned and"):
            surface.check(budget)
