"""What the tests of the search share: geometries, studies in files, a search that costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import optuna
import torch
from optuna.trial import FrozenTrial
from sqlalchemy.pool import NullPool

from tests.families import plain_geometry
from zerotprune import Schedule
from zerotprune.methods import ZeroTPrune
from zerotprune.search.config import SearchConfig
from zerotprune.search.objective import Outcome
from zerotprune.search.space import surface_of
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import work

GEOMETRIES = {
    "deit-ti": plain_geometry(12, 14, 1, 192),
    "deep": plain_geometry(24, 16, 5, 384),
    "small grid": plain_geometry(12, 7, 1, 96),
    "shallow": plain_geometry(4, 6, 0, 48),
    "two blocks": plain_geometry(2, 14, 1, 64),
}
SURFACES = {name: surface_of(geometry, ZeroTPrune()) for name, geometry in GEOMETRIES.items()}
SIXTY = SearchConfig(60, 0.7 * SURFACES["small grid"].unpruned, "top1")

Opener = Callable[..., optuna.Study]


def easy_outcome(schedule: Schedule) -> Outcome:
    hits = torch.arange(10) < len(schedule.stages)
    return Outcome(torch.ones(10), hits, hits)


def work_slowly(storage: str, study: str, alone: bool) -> None:
    """Sixty trials, slow enough to be killed between them."""

    def objective(schedule: Schedule) -> Outcome:
        time.sleep(0.01)
        return easy_outcome(schedule)

    opened = open_study(StudyLocation(storage, study), {"a": "b"}, SIXTY.directions)
    work(opened, SIXTY, SURFACES["small grid"], objective, alone=alone)


def trials_in(where: Path | str, study: str = "search") -> list[FrozenTrial]:
    """As Optuna itself reads them, without our help."""
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    return optuna.load_study(study_name=study, storage=storage).get_trials()
