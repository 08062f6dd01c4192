"""Workers killed at random moments: after each resume nothing is lost, nothing counts twice."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import optuna
import pytest

from tests.search.studies import SURFACES, easy_outcome
from zerotprune import Schedule
from zerotprune.search.config import SearchConfig
from zerotprune.search.objective import Outcome
from zerotprune.search.sampling import stored
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import TrialLog, work

SURFACE = SURFACES["small grid"]
CONFIG = SearchConfig(60, 0.7 * SURFACE.unpruned, "top1")
KILLS = 12
optuna.storages.RDBStorage("sqlite://")  # it imports most of what it needs when it is first used


def open_here(location: StudyLocation) -> optuna.Study:
    return open_study(location, {"a": "b"}, CONFIG.directions)


def work_slowly(location: StudyLocation, alone: bool) -> None:
    """A process of its own, so that it can be killed."""

    def objective(schedule: Schedule) -> Outcome:
        time.sleep(0.01)
        return easy_outcome(schedule)

    work(open_here(location), CONFIG, SURFACE, objective, alone=alone)


@pytest.fixture(scope="module")
def start() -> Callable[..., BaseProcess]:
    """From a server that has imported everything: a process is there in no time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.search.test_kills"])

    def started(*arguments: object) -> BaseProcess:
        process = context.Process(target=work_slowly, args=arguments, daemon=True)
        process.start()
        return process

    return started


@pytest.mark.usefixtures("connections")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_at_any_moment_a_search_ends_exact(
    request: pytest.FixtureRequest, start: Callable[..., BaseProcess], tmp_path: Path, kind: str,
    workers: int,
) -> None:  # fmt: skip
    place = str(tmp_path / "x.db") if kind == "sqlite" else request.getfixturevalue("server").url()
    location = StudyLocation(place, f"{workers} workers")
    dice, kept, study = random.Random(workers), dict[int, object](), None
    for _ in range(KILLS // workers):
        # On an empty storage they meet while they make its tables.
        running = [start(location, workers == 1) for _ in range(workers)]
        study = study or open_here(location)
        log = TrialLog(study, CONFIG)
        wanted = len(kept) + dice.randrange(3)
        while len(log.refresh().trials) < wanted:
            assert all(process.is_alive() for process in running)
        for process in running:
            time.sleep(dice.uniform(0, 0.06))
            process.kill()
            process.join()
        now = counted(study)
        assert kept.items() <= now.items()
        assert len(now) < CONFIG.trials
        kept = now
    assert kept
    assert study is not None
    last = [start(location, workers == 1) for _ in range(workers)]
    for process in last:
        process.join(60)
        assert process.exitcode == 0
    final = counted(study)
    assert kept.items() <= final.items()
    assert len(final) == CONFIG.trials
    assert len(set(map(str, final.values()))) == CONFIG.trials
    stored_trials = study.get_trials()
    assert {trial.state for trial in stored_trials} == {optuna.trial.TrialState.COMPLETE}
    assert len(stored_trials) < CONFIG.trials + workers


def counted(study: optuna.Study) -> dict[int, object]:
    return {
        trial.number: stored(trial)["params"] for trial in TrialLog(study, CONFIG).refresh().trials
    }
