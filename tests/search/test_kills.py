"""Workers killed at random moments: after each resume nothing is lost, nothing counts twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import optuna
import pytest

from tests.nursery import nursery
from tests.search.studies import SIXTY
from zerotprune.search.sampling import stored
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import TrialLog

KILLS = 12
WORKER = """
import sys
from tests.search.studies import work_slowly
work_slowly(*sys.argv[1:3], alone=sys.argv[3] == "alone")
"""


@pytest.mark.usefixtures("connections")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_at_any_moment_a_search_ends_exact(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, workers: int
) -> None:
    place = str(tmp_path / "x.db") if kind == "sqlite" else request.getfixturevalue("server").url()
    location, born = StudyLocation(place, f"{workers} workers"), nursery()

    def start() -> list[int]:
        company = "alone" if workers == 1 else "together"
        return [born.start(WORKER, place, location.study, company) for _ in range(workers)]

    dice, kept, study = random.Random(workers), dict[int, object](), None
    for _ in range(KILLS // workers):
        # On an empty storage they meet while they make its tables.
        running = start()
        study = study or open_study(location, {"a": "b"}, SIXTY.directions)
        log = TrialLog(study, SIXTY)
        wanted = len(kept) + dice.randrange(3)
        while len(log.refresh().trials) < wanted:
            assert all(map(born.lives, running))
            time.sleep(0.01)  # the cores are theirs
        for worker in running:
            time.sleep(dice.uniform(0, 0.06))
            os.kill(worker, signal.SIGKILL)
            born.wait(worker)
        now = counted(study)
        assert kept.items() <= now.items()
        assert len(now) < SIXTY.trials
        kept = now
    assert kept
    assert study is not None
    last, limit = start(), time.monotonic() + 60
    while any(map(born.lives, last)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    for done in map(born.wait, last):
        assert done.returncode == 0, done.stderr
    final = counted(study)
    assert kept.items() <= final.items()
    assert len(final) == SIXTY.trials
    assert len(set(map(str, final.values()))) == SIXTY.trials
    stored_trials = study.get_trials()
    assert {trial.state for trial in stored_trials} == {optuna.trial.TrialState.COMPLETE}
    assert len(stored_trials) < SIXTY.trials + workers


def counted(study: optuna.Study) -> dict[int, object]:
    return {
        trial.number: stored(trial)["params"] for trial in TrialLog(study, SIXTY).refresh().trials
    }
