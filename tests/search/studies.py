"""What the tests of the search share: geometries, studies in files, a search that costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import optuna
import torch
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.families import plain_geometry
from zerotprune import Schedule
from zerotprune.methods import ZeroTPrune
from zerotprune.search.objective import Outcome
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import SearchConfig, run_trials
from zerotprune.search.surface import StageSurface

GEOMETRIES = {
    "deit-ti": plain_geometry(12, 14, 1, 192),
    "deep": plain_geometry(24, 16, 5, 384),
    "small grid": plain_geometry(12, 7, 1, 96),
    "shallow": plain_geometry(4, 6, 0, 48),
    "two blocks": plain_geometry(2, 14, 1, 64),
}
SURFACES = {name: StageSurface(geometry, ZeroTPrune()) for name, geometry in GEOMETRIES.items()}
FORTY = SearchConfig(40, 0.7 * SURFACES["shallow"].unpruned, "top1")

Opener = Callable[..., optuna.Study]


def easy_outcome(schedule: Schedule) -> Outcome:
    hits = torch.arange(10) < len(schedule.stages)
    return Outcome(torch.ones(10), hits, hits)


def run_slowly(storage: str, study: str) -> None:
    """Run forty trials, slow enough to be killed between them."""

    def objective(schedule: Schedule) -> Outcome:
        time.sleep(0.01)
        return easy_outcome(schedule)

    opened = open_study(StudyLocation(storage, study), {"a": "b"}, FORTY.directions)
    run_trials(opened, FORTY, SURFACES["shallow"], objective)


def url_of(storage: Path | str) -> str:
    return f"sqlite:///{storage}" if "://" not in str(storage) else str(storage)


def trials_in(storage: Path | str, study: str = "search") -> list[FrozenTrial]:
    """Read all trials as Optuna itself does, without our help."""
    opened = optuna.storages.RDBStorage(url_of(storage), engine_kwargs={"poolclass": NullPool})
    return optuna.load_study(study_name=study, storage=opened).get_trials()


def complete_in(storage: Path | str, study: str = "search") -> list[FrozenTrial]:
    return [trial for trial in trials_in(storage, study) if trial.state is TrialState.COMPLETE]


def stop_hearts(storage: Path | str) -> None:
    """Make all running trials look as if their workers had died long ago."""
    engine = create_engine(url_of(storage), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2000-01-01 00:00:00'"))
    engine.dispose()
