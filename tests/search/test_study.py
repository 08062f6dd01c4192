"""Trials: exact in number, deterministic alone, never drawn twice, unharmed by Ctrl-C."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.search.studies import SURFACES, Opener, easy_outcome, stop_hearts, trials_in
from tests.thorough import thorough
from zerotprune import Schedule
from zerotprune.search.objective import Outcome
from zerotprune.search.study import (
    FinishedTrial,
    SamplerName,
    SearchConfig,
    finished,
    read_trials,
    run_trials,
)
from zerotprune.search.surface import StageSurface

SMALL = SURFACES["shallow"]
BUDGET = 0.7 * SMALL.unpruned
SAMPLERS: tuple[SamplerName, ...] = ("random", "tpe", "nsga2")


def config_for(
    trials: int, sampler: SamplerName = "random", surface: StageSurface = SMALL, seed: int = 0
) -> SearchConfig:
    budget = None if sampler == "nsga2" else 0.7 * surface.unpruned
    return SearchConfig(trials, budget, "kl", sampler, seed)


def by_stages(schedule: Schedule) -> Outcome:
    """Score one stage best and six worst."""
    return Outcome(torch.full((2,), float(len(schedule.stages))), torch.ones(2).bool(), None)


def work_until(study: optuna.Study, config: SearchConfig, stop: int) -> None:
    """Work as if killed between two trials."""
    run_trials(study, config, SMALL, by_stages, proceed=lambda: len(finished(study, config)) < stop)


@pytest.mark.parametrize(
    ("sampler", "stops"), [("random", (5, 16)), ("tpe", (5, 16)), ("nsga2", (7, 16))]
)
def test_a_seed_makes_the_same_trials_and_resuming_repeats_none(
    opened: Opener, tmp_path: Path, sampler: SamplerName, stops: tuple[int, ...]
) -> None:
    def run(name: str, *stops: int) -> list[FinishedTrial]:
        config = config_for(16, sampler, seed=3)
        for stop in stops:
            study = opened(config, name)
            work_until(study, config, stop)
        return read_trials(study, config)

    whole, parts = run("whole.db", 16), run("parts.db", *stops)
    assert whole == parts
    assert len({str(trial.params) for trial in trials_in(tmp_path / "whole.db")}) == 16


def test_who_runs_a_trial_does_not_change_what_it_draws(opened: Opener) -> None:
    """Two machines run the same command, one several trials while the other runs its first."""
    config = config_for(6)
    alone = opened(config, "alone.db")
    run_trials(alone, config, SMALL, by_stages)
    mine, theirs = opened(config), opened(config)

    def meanwhile(schedule: Schedule) -> Outcome:
        if not finished(theirs, config):
            calls = iter([True, True, False])
            run_trials(theirs, config, SMALL, by_stages, proceed=lambda: next(calls))
        return by_stages(schedule)

    run_trials(mine, config, SMALL, meanwhile)
    assert [trial.number for trial in finished(mine, config)] == [1, 2, 0, 3, 4, 5]
    assert [trial.params for trial in mine.get_trials()] == [
        trial.params for trial in alone.get_trials()
    ]


def test_equal_parameters_count_once(opened: Opener) -> None:
    config = config_for(4)
    study = opened(config)
    work_until(study, config, 2)
    study.add_trial(study.get_trials()[1])
    assert len(finished(study, config)) == 2
    run_trials(study, config, SMALL, by_stages)
    assert [trial.number for trial in finished(study, config)] == [0, 1, 3, 4]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_worker_that_was_taken_for_dead_goes_on(opened: Opener, tmp_path: Path) -> None:
    """After a machine was asleep, another one retries its trial with the same parameters."""
    config = config_for(4)
    study, theirs, calls = opened(config), opened(config), list[Schedule]()

    def sleeping(schedule: Schedule) -> Outcome:
        calls.append(schedule)
        if len(calls) == 3:
            stop_hearts(tmp_path / "x.db")
            optuna.storages.fail_stale_trials(theirs)
        return by_stages(schedule)

    run_trials(study, config, SMALL, sleeping)
    states = [trial.state for trial in study.get_trials()]
    assert states == [TrialState.COMPLETE] * 2 + [TrialState.FAIL] + [TrialState.COMPLETE] * 2
    assert calls[2] == calls[3]
    assert len(read_trials(study, config)) == 4


def test_what_is_finished_beyond_the_total_is_ignored_until_more_are_wanted(opened: Opener) -> None:
    study = opened(config_for(5))
    run_trials(study, config_for(5), SMALL, by_stages)
    everything = read_trials(study, config_for(5))
    assert read_trials(study, config_for(3)) == everything[:3]
    run_trials(study, config_for(3), SMALL, by_stages)
    assert len(study.get_trials()) == 5
    run_trials(study, config_for(7), SMALL, by_stages)
    assert read_trials(study, config_for(7))[:5] == everything


@pytest.mark.parametrize("budget", [BUDGET, None])
def test_what_is_stored_of_a_trial_makes_its_schedule(
    opened: Opener, tmp_path: Path, budget: float | None
) -> None:
    config = SearchConfig(5, budget, "kl")

    def overflowing(schedule: Schedule) -> Outcome:
        kl = torch.inf if len(schedule.stages) > 1 else len(schedule.stages) / 7
        return Outcome(torch.full((3,), kl), torch.ones(3).bool(), None)

    study = opened(config)
    run_trials(study, config, SMALL, overflowing)
    stored_trials = trials_in(tmp_path / "x.db")
    for trial, read in zip(stored_trials, read_trials(study, config), strict=True):
        assert trial.state == TrialState.COMPLETE
        assert set(trial.params) == set(SMALL.space(budget))
        assert SMALL.propose(trial.params, budget) == read.schedule
        wanted = overflowing(read.schedule).mean_kl
        assert trial.values == ([wanted] if budget else [wanted, read.gmacs])
    assert torch.inf in {trial.values[0] for trial in stored_trials}


def test_tpe_learns_from_the_trials_before() -> None:
    means, surface = {}, SURFACES["small grid"]
    for sampler in SAMPLERS[:2]:
        config = config_for(60, sampler, surface)
        study = optuna.create_study(directions=config.directions)
        run_trials(study, config, surface, by_stages)
        means[sampler] = np.mean([trial.mean_kl for trial in read_trials(study, config)[30:]])
    assert means["tpe"] < 0.6 * means["random"]


def test_nsga2_breeds_from_stored_generations(opened: Opener) -> None:
    """A second worker resumes from the stored generations, and its own are better."""
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
    kl = [trial.mean_kl for trial in read_trials(study, config)]
    assert np.mean(kl[40:]) < np.mean(kl[:14])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_on_the_smallest_model(sampler: SamplerName) -> None:
    """There is one place for a stage, and no choice of how many."""
    surface = SURFACES["two blocks"]
    config = config_for(16, sampler, surface)
    study = optuna.create_study(directions=config.directions)
    run_trials(study, config, surface, easy_outcome)
    finished = read_trials(study, config)
    assert {len(trial.schedule.stages) for trial in finished} <= {0, 1}
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
        run_trials(study, config, SMALL, broken)
    assert [trial.state for trial in study.get_trials()] == [TrialState.FAIL]
    assert read_trials(study, config) == []


class Unreadable(Outcome):
    @property
    def mean_kl(self) -> float:
        raise RuntimeError("mine")


def test_an_error_in_a_later_trial_is_raised(opened: Opener) -> None:
    """Whether the objective fails, or what it returned cannot be read."""
    config, calls = config_for(6), list[Schedule]()
    study = opened(config)

    def broken(schedule: Schedule) -> Outcome:
        calls.append(schedule)
        assert len(calls) < 9, "the error was swallowed"
        return Unreadable(*astuple(by_stages(schedule))) if len(calls) == 3 else by_stages(schedule)

    with pytest.raises(RuntimeError, match="mine"):
        run_trials(study, config, SMALL, broken)
    states = [trial.state for trial in study.get_trials()]
    assert states == [TrialState.COMPLETE] * 2 + [TrialState.FAIL]
    run_trials(study, config, SMALL, by_stages)
    assert len(read_trials(study, config)) == 6


def test_a_worker_that_shares_a_trial_with_a_faster_one_goes_on(opened: Opener) -> None:
    """On SQLite, two workers may both take a trial that waits to be retried."""
    config, calls = config_for(4), list[Schedule]()
    study, theirs = opened(config), opened(config)

    def slow(schedule: Schedule) -> Outcome:
        calls.append(schedule)
        if len(calls) == 3:
            (running,) = theirs.get_trials(states=[TrialState.RUNNING])
            other = optuna.Trial(theirs, running._trial_id)
            other.set_user_attr("result", study.get_trials()[0].user_attrs["result"])
            theirs.tell(other, study.get_trials()[0].values)
        return by_stages(schedule)

    run_trials(study, config, SMALL, slow)
    assert [trial.state for trial in study.get_trials()] == [TrialState.COMPLETE] * 4
    assert len(read_trials(study, config)) == len(calls) == 4


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_an_error_in_a_trial_of_a_worker_taken_for_dead_is_raised(
    opened: Opener, tmp_path: Path
) -> None:
    config = config_for(4)
    study, theirs, calls = opened(config), opened(config), list[Schedule]()

    def broken(schedule: Schedule) -> Outcome:
        calls.append(schedule)
        if len(calls) == 3:
            stop_hearts(tmp_path / "x.db")
            optuna.storages.fail_stale_trials(theirs)
            raise RuntimeError("mine")
        return by_stages(schedule)

    with pytest.raises(RuntimeError, match="mine"):
        run_trials(study, config, SMALL, broken)


@contextmanager
def interrupting(moment: Any) -> Iterator[tuple[list[int], list[int]]]:
    """Count the transactions, and send Ctrl-C in the middle of the one that is due."""
    moments, due = list[int](), [0]

    def interrupt(connection: object) -> None:
        moments.append(len(moments))
        if len(moments) == due[0]:
            os.kill(os.getpid(), signal.SIGINT)

    event.listen(Engine, moment, interrupt)
    yield moments, due
    event.remove(Engine, moment, interrupt)


@pytest.mark.parametrize(
    ("moment", "sampler"),
    [
        ("begin", "random"),
        pytest.param("commit", "tpe", marks=thorough),
        ("commit", "nsga2"),
    ],
)
def test_an_interrupt_never_breaks_a_transaction(
    opened: Opener, tmp_path: Path, moment: str, sampler: SamplerName
) -> None:
    """Press Ctrl-C in the middle of every transaction of a search, one after the other."""
    config = config_for(20, sampler)
    study = opened(config)
    with interrupting(moment) as (moments, due):
        for step in (1, 2, 3, 5, 8, 13, 21, 34, 55):  # one trial has about fifty
            due[0] = len(moments) + step
            with pytest.raises(KeyboardInterrupt):
                run_trials(study, config, SMALL, by_stages)
            assert_free(tmp_path / "x.db")
        due[0] = 0
        run_trials(study, config, SMALL, by_stages)
    assert len(read_trials(study, config)) == 20
    states = [trial.state for trial in study.get_trials()]
    assert states.count(TrialState.COMPLETE) == 20
    assert states.count(TrialState.FAIL) == len(states) - 20 <= 9


def assert_free(file: Path) -> None:
    """Check that nobody holds a lock."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")


def test_an_interrupt_while_trials_are_counted_leaves_no_lock(
    opened: Opener, tmp_path: Path
) -> None:
    study = opened(config_for(2))
    with interrupting("commit") as (_, due):
        due[0] = 1
        with pytest.raises(KeyboardInterrupt):
            read_trials(study, config_for(2))
    assert_free(tmp_path / "x.db")
