"""Workers killed at random moments: after each resume nothing is lost, nothing counts twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.nursery import nursery
from tests.search.studies import FORTY, run_slowly, stop_hearts
from tests.thorough import thorough
from tests.waiting import wait_until
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import finished

KILLS = 8
WORKER = f"""
import sys
from {run_slowly.__module__} import run_slowly
run_slowly(*sys.argv[1:3])
"""


@pytest.mark.usefixtures("connections")
@pytest.mark.parametrize("workers", [pytest.param(1, marks=thorough), 2])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_at_any_moment_a_search_ends_exact(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, workers: int
) -> None:
    place = str(tmp_path / "x.db") if kind == "sqlite" else request.getfixturevalue("server").url()
    location, born = StudyLocation(place, f"{workers} workers"), nursery()

    def start() -> list[int]:
        return [born.start(WORKER, place, location.study) for _ in range(workers)]

    rng, kept, study = random.Random(workers), dict[int, object](), None
    for _ in range(KILLS // workers):
        # On an empty storage they meet while they make its tables.
        running = start()
        study = study or open_study(location, {"a": "b"}, FORTY.directions)
        wanted = min(len(kept) + rng.randrange(3), FORTY.trials)
        while len(counted(study)) < wanted:
            assert all(map(born.lives, running)) or len(counted(study)) >= wanted
            time.sleep(0.01)  # the cores are theirs
        for worker in running:
            time.sleep(rng.uniform(0, 0.06))
            os.kill(worker, signal.SIGKILL)
            born.wait(worker)
        now = counted(study)
        assert kept.items() <= now.items()
        kept = now
        if len(kept) >= FORTY.trials:  # on a busy machine they may be done before the kill
            break
    assert kept
    assert study is not None
    stop_hearts(place)
    last = start()
    wait_until(lambda: not any(map(born.lives, last)), "their end", pause=0.05)
    for done in map(born.wait, last):
        assert done.returncode == 0, done.stderr
    final = counted(study)
    assert kept.items() <= final.items()
    assert len(final) == FORTY.trials
    assert len(set(map(str, final.values()))) == FORTY.trials
    assert_killed_trials_were_retried(study.get_trials(), workers)


def assert_killed_trials_were_retried(trials: list[optuna.trial.FrozenTrial], workers: int) -> None:
    """Check that each trial that lost its worker was completed with the same parameters, unless the
    worker was killed before its first heartbeat, and so before anything was measured."""
    states = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING
    complete, killed, unborn = ([t for t in trials if t.state is state] for state in states)
    assert len(complete) + len(killed) + len(unborn) == len(trials)
    # Each worker may have begun one more before the last of the forty was done.
    assert FORTY.trials <= len(complete) <= FORTY.trials + workers
    assert len(killed) + len(unborn) <= KILLS
    assert not any(trial.user_attrs for trial in unborn)
    for trial in killed:
        again = [
            other for other in complete if other.system_attrs.get("failed_trial") == trial.number
        ]
        assert len(again) == 1
        assert trial.params.items() <= again[0].params.items()


def counted(study: optuna.Study) -> dict[int, object]:
    return {trial.number: trial.params for trial in finished(study, FORTY)}
