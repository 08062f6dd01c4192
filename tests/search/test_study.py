"""Trials: exact in number, deterministic alone, never drawn twice, unharmed by Ctrl-C."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.search.studies import SURFACES, Opener, easy_outcome, trials_in
from zerotprune import Schedule
from zerotprune.budgets.surface import Surface
from zerotprune.search.config import SamplerName, SearchConfig
from zerotprune.search.objective import Outcome
from zerotprune.search.sampling import ParameterSampler, stored
from zerotprune.search.space import propose, space_of
from zerotprune.search.storage import deferred
from zerotprune.search.study import FinishedTrial, TrialLog, read_trials, work

SMALL = SURFACES["small grid"]
BUDGET = 0.7 * SMALL.unpruned
SAMPLERS: tuple[SamplerName, ...] = ("random", "tpe", "nsga2")


def config_for(
    trials: int, sampler: SamplerName = "random", surface: Surface = SMALL, seed: int = 0
) -> SearchConfig:
    budget = None if sampler == "nsga2" else 0.7 * surface.unpruned
    return SearchConfig(trials, budget, "kl", sampler, seed)


def by_stages(schedule: Schedule) -> Outcome:
    """One stage is the best here, and six are the worst."""
    return Outcome(torch.full((2,), float(len(schedule.stages))), torch.ones(2).bool(), None)


def work_until(study: optuna.Study, config: SearchConfig, stop: int) -> None:
    """As if killed between two trials."""
    log = TrialLog(study, config)
    work(study, config, SMALL, by_stages, wanted=lambda: len(log.refresh().trials) < stop)


@pytest.mark.parametrize(
    ("sampler", "stops"), [("random", (5, 16)), ("tpe", (5, 16)), ("nsga2", (16,))]
)
def test_a_seed_makes_the_same_trials_and_resuming_repeats_none(
    opened: Opener, tmp_path: Path, sampler: SamplerName, stops: tuple[int, ...]
) -> None:
    """NSGA-II, resumed in the middle of a generation, lists its parents in another order."""

    def run(name: str, *stops: int) -> list[FinishedTrial]:
        config = config_for(16, sampler, seed=3)
        for stop in stops:
            study = opened(config, name)
            work_until(study, config, stop)
        return read_trials(study, config)

    whole, parts = run("whole.db", 16), run("parts.db", *stops)
    assert whole == parts
    params = [str(stored(trial)["params"]) for trial in trials_in(tmp_path / "whole.db")]
    assert len(set(params)) == 16


def test_two_lone_workers_that_draw_the_same_count_once_and_part_ways(opened: Opener) -> None:
    """Two machines with the same command, the second one a whole trial behind."""
    config = config_for(6)
    mine, theirs = opened(config), opened(config)

    def meanwhile(schedule: Schedule) -> Outcome:
        if not theirs.get_trials(deepcopy=False):
            calls = iter([True, False])
            work(theirs, config, SMALL, by_stages, wanted=lambda: next(calls))
        return by_stages(schedule)

    work(mine, config, SMALL, meanwhile)
    drawn = [stored(trial) for trial in mine.get_trials()]
    assert drawn[0]["params"] == drawn[1]["params"]
    assert drawn[0]["worker"] != drawn[1]["worker"]
    counted = TrialLog(mine, config).refresh().trials
    assert [trial.number for trial in counted] == [0, 2, 3, 4, 5, 6]
    # Having met another, it does not draw what the other one would draw next.
    sampler = ParameterSampler(config, space_of(SMALL, BUDGET))
    assert stored(counted[1])["params"] != sampler.draw(1, "", 0).params


def test_workers_among_several_draw_different_trials_from_the_same_start(opened: Opener) -> None:
    config, drawn = config_for(1), []
    for name in ("x.db", "y.db"):
        study = opened(config, name)
        work(study, config, SMALL, by_stages, alone=False)
        drawn.append(read_trials(study, config)[0].schedule)
    assert drawn[0] != drawn[1]


def test_what_is_finished_beyond_the_total_is_ignored_until_more_are_wanted(opened: Opener) -> None:
    study = opened(config_for(5))
    work(study, config_for(5), SMALL, by_stages)
    everything = read_trials(study, config_for(5))
    assert read_trials(study, config_for(3)) == everything[:3]
    assert TrialLog(study, config_for(3)).refresh().full
    work(study, config_for(3), SMALL, by_stages)
    assert len(study.get_trials()) == 5
    work(study, config_for(7), SMALL, by_stages)
    assert read_trials(study, config_for(7))[:5] == everything


@pytest.mark.parametrize("budget", [BUDGET, None])
def test_what_is_stored_of_a_trial_makes_its_schedule(
    opened: Opener, tmp_path: Path, budget: float | None
) -> None:
    config = SearchConfig(5, budget, "kl")

    def overflowing(schedule: Schedule) -> Outcome:
        kl = torch.inf if len(schedule.stages) > 3 else len(schedule.stages) / 7
        return Outcome(torch.full((3,), kl), torch.ones(3).bool(), None)

    study = opened(config)
    work(study, config, SMALL, overflowing)
    stored_trials = trials_in(tmp_path / "x.db")
    for trial, read in zip(stored_trials, read_trials(study, config), strict=True):
        assert trial.state == TrialState.COMPLETE
        params = stored(trial)["params"]
        assert set(params) == set(space_of(SMALL, budget))
        assert propose(params, SMALL, budget) == read.schedule
        wanted = overflowing(read.schedule).mean_kl
        assert trial.values == ([wanted] if budget else [wanted, read.gmacs])
    assert torch.inf in {trial.values[0] for trial in stored_trials}


def test_tpe_learns_from_the_trials_before(opened: Opener) -> None:
    means = {}
    for sampler in SAMPLERS[:2]:
        config = config_for(60, sampler)
        study = opened(config, f"{sampler}.db")
        work(study, config, SMALL, by_stages)
        means[sampler] = np.mean([each.mean_kl for each in read_trials(study, config)[30:]])
    assert means["tpe"] < 0.6 * means["random"]


def test_nsga2_breeds_from_stored_generations(opened: Opener) -> None:
    """Resumed by another worker, later generations go on from the stored ones, and are better."""
    for total in (20, 60):
        config = config_for(60, "nsga2")
        study = opened(config)
        work_until(study, config, total)
    generations = [
        next(iter(trial.system_attrs.values()))
        for trial in study.get_trials()
        if trial.system_attrs
    ]
    assert generations == sorted(generations)
    assert len(generations) == 60
    assert generations[-1] >= 5
    kl = [each.mean_kl for each in read_trials(study, config)]
    assert np.mean(kl[40:]) < np.mean(kl[:14])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_on_the_smallest_model(opened: Opener, sampler: SamplerName) -> None:
    """There is one place for a stage, and no choice of how many."""
    surface = SURFACES["two blocks"]
    config = config_for(16, sampler, surface)
    study = opened(config)
    work(study, config, surface, easy_outcome)
    finished = read_trials(study, config)
    assert {len(each.schedule.stages) for each in finished} <= {0, 1}
    assert len(finished) == 16


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_in_a_trial_is_raised_and_leaves_nothing(
    opened: Opener, error: BaseException
) -> None:
    config = config_for(2)
    study = opened(config)

    def broken(schedule: Schedule) -> Outcome:
        raise error

    with pytest.raises(type(error)):
        work(study, config, SMALL, broken)
    assert study.get_trials() == []


@contextmanager
def interrupting(moment: Any) -> Iterator[tuple[list[int], list[int]]]:
    """Counts the transactions; the one that is due gets Ctrl-C in its middle."""
    moments, due = list[int](), [0]

    def interrupt(connection: object) -> None:
        moments.append(len(moments))
        if len(moments) == due[0]:
            os.kill(os.getpid(), signal.SIGINT)

    event.listen(Engine, moment, interrupt)
    yield moments, due
    event.remove(Engine, moment, interrupt)


@pytest.mark.parametrize(
    ("moment", "sampler"), [("begin", "random"), ("commit", "tpe"), ("commit", "nsga2")]
)
def test_an_interrupt_never_breaks_a_transaction(
    opened: Opener, tmp_path: Path, moment: str, sampler: SamplerName
) -> None:
    """Ctrl-C in the middle of every transaction of a search, one after the other."""
    config = config_for(20, sampler)
    study = opened(config)
    with interrupting(moment) as (moments, due):
        for step in range(1, 9):  # more than a trial has
            due[0] = len(moments) + step
            with pytest.raises(KeyboardInterrupt):
                work(study, config, SMALL, by_stages)
            assert_free(tmp_path / "x.db")
        due[0] = 0
        work(study, config, SMALL, by_stages)
    assert len(read_trials(study, config)) == 20
    assert {trial.state for trial in study.get_trials()} == {TrialState.COMPLETE}


def assert_free(file: Path) -> None:
    """Nobody holds a lock."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")


def test_an_interrupt_while_trials_are_counted_leaves_no_lock(
    opened: Opener, tmp_path: Path
) -> None:
    study = opened(config_for(2))
    with interrupting("commit") as (_, due):
        due[0] = 1
        with pytest.raises(KeyboardInterrupt):
            TrialLog(study, config_for(2)).refresh()
    assert_free(tmp_path / "x.db")


def test_an_interrupt_waits_where_it_is_deferred() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("went on")
        steps.append("never here")
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_not_lost_to_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), deferred():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
