"""A search by counts, of Fold and ToMe: on the budget, from the method's own schedule on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands import quickly
from tests.search.studies import GEOMETRIES, Opener
from tests.search.test_space import drawn
from tests.thorough import thorough
from zerotprune import Schedule, Stage, schedule_for
from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.methods import Fold, ToMe, names, resolve
from zerotprune.plan import Plan
from zerotprune.search.objective import Objective, Outcome, Stack, rank_key
from zerotprune.search.study import (
    FinishedTrial,
    SamplerName,
    SearchConfig,
    best_first,
    finished,
    read_trials,
    run_trials,
)
from zerotprune.search.surface import CountSurface, surface_of

SURFACES = {
    f"{name}, {method.name}": CountSurface(geometry, method)
    for name, geometry in GEOMETRIES.items()
    for method in (Fold(), ToMe())
}
SMALL = SURFACES["small grid, fold"]


def acting(schedule: Schedule) -> list[Stage]:
    return [stage for stage in schedule.stages if stage.prunes]


@given(st.data(), st.sampled_from(sorted(SURFACES)), st.floats(0, 1))
@settings(max_examples=100)
def test_every_sample_is_valid_and_costs_the_budget(
    data: st.DataObject, name: str, level: float
) -> None:
    surface = SURFACES[name]
    budget = surface.lowest + level * (surface.unpruned - surface.lowest)
    schedule = surface.propose(drawn(data, surface, budget), budget)
    Plan(schedule, surface.geometry).check()
    assert surface.price(schedule) == pytest.approx(budget, rel=0.01)
    left = surface.geometry.patches
    for stage in schedule.stages:
        assert (stage.keep, stage.rounds) == (1, None)
        assert 0 < stage.similar <= left // 2
        left -= stage.similar
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_counts_are_in_the_proportions_that_were_drawn() -> None:
    surface = SURFACES["deit-ti, fold"]
    wish = [0.0, 0.0, 0.0, 4.0, 8.0, 0.0, 12.0, 0.0, 4.0, 0.0, 0.0]
    schedule = surface.fit(wish, 0.8 * surface.unpruned)
    assert [stage.block for stage in schedule.stages] == [4, 5, 7, 9]
    counts = [stage.similar for stage in schedule.stages]
    unit = sum(counts) / 28
    assert counts == pytest.approx([4 * unit, 8 * unit, 12 * unit, 4 * unit], abs=1.01)


@pytest.mark.parametrize("cost", [1.0, 0.9, 0.7, 0.55])
@pytest.mark.parametrize("method", [Fold(), ToMe()], ids=str)
def test_the_methods_own_schedule_is_where_it_starts(method: Fold | ToMe, cost: float) -> None:
    model = demo.untrained()
    surface = surface_of(backbone(model).geometry, method)
    start = surface.start(cost * surface.unpruned)
    assert start is not None
    proposed = surface.propose(start, cost * surface.unpruned)
    assert acting(proposed) == acting(schedule_for(model, cost=cost, method=method))
    assert surface.start(None) is None


def by_first_block(schedule: Schedule) -> Outcome:
    """Score higher the later the schedule starts."""
    first = min((stage.block for stage in schedule.stages), default=12)
    return Outcome(torch.full((2,), 1 / first), torch.ones(2).bool(), None)


@pytest.mark.parametrize(
    ("sampler", "stops"),
    [
        ("random", (1, 4, 12)),
        pytest.param("tpe", (1, 4, 12), marks=thorough),
        pytest.param("nsga2", (7, 12), marks=thorough),
    ],
)
def test_a_seed_makes_the_same_trials_and_resuming_repeats_none(
    opened: Opener, sampler: SamplerName, stops: tuple[int, ...]
) -> None:
    budget = None if sampler == "nsga2" else 0.7 * SMALL.unpruned
    config = SearchConfig(12, budget, "kl", sampler, seed=3)

    def run(name: str, *stops: int) -> list[FinishedTrial]:
        for stop in stops:
            study = opened(config, name)
            run_trials(study, config, SMALL, by_first_block,
                       proceed=lambda study=study, stop=stop: len(finished(study, config)) < stop)  # type: ignore[misc]  # fmt: skip
        return read_trials(study, config)

    whole = run("whole.db", 12)
    assert whole == run("parts.db", *stops)
    if budget is not None:
        assert len({trial.schedule for trial in whole}) == 12
        start = SMALL.start(budget)
        assert start is not None
        assert whole[0].schedule == SMALL.propose(start, budget)
        for trial in whole:
            assert trial.gmacs == pytest.approx(budget, rel=0.01)


@pytest.mark.parametrize("method", [Fold(), ToMe()], ids=str)
def test_it_never_ends_worse_than_it_starts(opened: Opener, method: Fold | ToMe) -> None:
    model = demo.model()
    images, labels = demo.images(12, seed=5)
    objective = Objective(model, method, Stack([images], [labels]), memory=1e9)
    surface = surface_of(backbone(model).geometry, method)
    config = SearchConfig(4, 0.6 * surface.unpruned, "top1")
    study = opened(config)
    run_trials(study, config, surface, objective)
    even = objective(schedule_for(model, cost=0.6, method=method))
    trials = read_trials(study, config)
    assert rank_key(trials[0]) == pytest.approx(rank_key(even))
    assert rank_key(best_first(trials)[0]) <= rank_key(trials[0])


def test_the_command_searches_fold(folder: Path, tmp_path: Path) -> None:
    done = quickly("search", "demo", str(folder), "--method", "fold", "--cost", "0.6", "--trials",
                   "3", "--finalists", "2", "--no-labels", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "method's form" in done.stdout
    schedule = Schedule.load(tmp_path / "schedule.json")
    assert schedule.method == Fold()
    surface = surface_of(backbone(demo.untrained()).geometry, Fold())
    assert surface.price(schedule) == pytest.approx(0.6 * surface.unpruned, rel=0.01)


def test_methods_say_what_a_search_draws() -> None:
    by_counts = {name for name in names() if resolve(name).searchable == "counts"}
    assert by_counts == {
        "fold", "tome", "tome-uni", "mctf", "mctf-fold", "mctf-after", "mctf-after-fold",
        "pitome", "atc",
    }  # fmt: skip
    nothing = {name for name in names() if resolve(name).searchable is None}
    assert nothing == {
        "a-vit", "ats", "evit", "evit-drop", "diffrate", "diffrate-even", "dynamicvit", "slicing"
    }  # fmt: skip
