"""Where trials are kept: a file or a server, opened, and held to one search for good."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import optuna
from optuna.distributions import distribution_to_json
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event, insert
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError

from ..files import check_writable
from .space import Chosen, Space

_IDENTITY = "zerotprune"
_NOTES = "zerotprune-notes"
_SECONDS_TO_WAIT = 60


@dataclass(frozen=True)
class Place:
    """Which study in which storage: a file's name, or a URL as Optuna takes it."""

    storage: str
    study: str = "search"

    @property
    def url(self) -> str:
        return self.storage if "://" in self.storage else f"sqlite:///{self.storage}"

    @property
    def file(self) -> Path | None:
        return None if "://" in self.storage else Path(self.storage)

    def __str__(self) -> str:
        """For the eyes of people: without a password."""
        if self.file is not None:
            return self.storage
        try:
            return make_url(self.url).render_as_string(hide_password=True)
        except ArgumentError:
            return "the storage"


def check_target(place: Place) -> None:
    """Say at once, before any work is done, that trials could not be kept there."""
    if place.file is None:
        try:
            make_url(place.url)
        except ArgumentError:
            raise ValueError(f"--storage {place.storage!r} is neither a file nor a URL") from None
    else:
        check_writable(place.file)


def exists(place: Place) -> bool:
    """Could there be trials already? A server is always asked."""
    return place.file is None or place.file.exists()


def open_study(
    place: Place, identity: Mapping[str, str], directions: list[StudyDirection]
) -> Study:
    """The study, a new one where there is none. A study of another search is refused."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = _connected(place)
    try:
        study = optuna.create_study(
            storage=storage, study_name=place.study, directions=directions, load_if_exists=True
        )
        held = study.user_attrs.get(_IDENTITY)
        if held is None and not study.get_trials(deepcopy=False):
            study.set_user_attr(_IDENTITY, dict(identity))
            held = study.user_attrs[_IDENTITY]
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        _unreachable(place, error)
    refuse_other(place, held, identity)
    return study


def refuse_other(place: Place, held: object, identity: Mapping[str, str]) -> None:
    """Trials of different searches must not be mixed: say what differs."""
    if not isinstance(held, Mapping):
        raise ValueError(f"{place} holds a study {place.study!r} that is not of this command")
    for name in [*identity, *sorted(set(held) - set(identity))]:
        if held.get(name) != identity.get(name):
            raise ValueError(
                f"{place} belongs to another search: its {name} is {held.get(name, 'unknown')}, "
                f"here it is {identity.get(name, 'unknown')}; give another --storage or --study"
            )


def noted(study: Study, name: str, value: Any) -> Any:
    """What was noted in the study under this name; `value`, noted now, if nothing was."""
    notes = study.user_attrs.get(f"{_NOTES}-{name}")
    if notes is None:
        study.set_user_attr(f"{_NOTES}-{name}", value)
        return value
    return notes


def note(study: Study, name: str) -> Any:
    return study.user_attrs.get(f"{_NOTES}-{name}")


def begin(study: Study, template: FrozenTrial) -> FrozenTrial:
    """A new trial like this one, with its number."""
    made: FrozenTrial = _backend(study)._create_new_trial(study._study_id, template)
    return made


def finish(
    study: Study,
    trial: int,
    space: Space,
    chosen: Chosen,
    values: Sequence[float],
    attributes: Mapping[str, Any],
) -> None:
    """Tell what a trial has chosen and come to, in one transaction.

    By Optuna's own functions it would be one for each choice, and they are what a search of a fast
    model spends most of its time on. One that was failed meanwhile is not finished: an
    `UpdateFinishedTrialError` says so.
    """
    assert not any(map(math.isnan, values)), "Optuna could never read it again"
    backend = _backend(study)
    with _create_scoped_session(backend.scoped_session) as session:
        row = models.TrialModel.find_or_raise_by_id(trial, session, for_update=True)
        backend.check_trial_is_updatable(trial, row.state)
        params = [
            {"trial_id": trial, "param_name": name,
             "param_value": distribution.to_internal_repr(chosen[name]),
             "distribution_json": distribution_to_json(distribution)}
            for name, distribution in space.items()
        ]  # fmt: skip
        stored = [models.TrialValueModel.value_to_stored_repr(value) for value in values]
        results = [
            {"trial_id": trial, "objective": objective, "value": value, "value_type": kind}
            for objective, (value, kind) in enumerate(stored)
        ]
        notes = [
            {"trial_id": trial, "key": key, "value_json": json.dumps(value)}
            for key, value in attributes.items()
        ]
        session.execute(insert(models.TrialParamModel), params)
        session.execute(insert(models.TrialValueModel), results)
        session.execute(insert(models.TrialUserAttributeModel), notes)
        row.state, row.datetime_complete = TrialState.COMPLETE, datetime.now()


def _backend(study: Study) -> Any:
    """Optuna's storage itself, beneath its cache of finished trials."""
    cached: Any = study._storage
    return cached._backend


def _connected(place: Place) -> optuna.storages.RDBStorage:
    """SQLite for files, and not Optuna's journal: a process that is killed while it writes leaves
    a journal with half a line or its lock behind, whereas a transaction of SQLite is there or is
    not, and its locks end with their process."""
    options: dict[str, Any] = {}
    sqlite = place.url.startswith("sqlite")
    if sqlite:
        options = {"connect_args": {"timeout": _SECONDS_TO_WAIT}}
    for attempt in range(5):
        try:
            storage = optuna.storages.RDBStorage(place.url, engine_kwargs=options)
            break
        except DatabaseError as error:
            # Two that start at once on an empty server both make the tables; one of them fails.
            if attempt == 4 or "already exists" not in str(error) + repr(error.orig):
                _unreachable(place, error)
            time.sleep(0.5 * (attempt + 1))
        except (SQLAlchemyError, ImportError, RuntimeError, OSError) as error:
            _unreachable(place, error)
    if sqlite:
        _serialised(storage.engine)
    return storage


def _serialised(engine: Engine) -> None:
    """Whoever reads in order to write locks first. Without that two processes may both see a
    trial unfinished and both finish it: SQLite has no rows to lock, and Python begins no
    transaction until something is written. The write-ahead log saves most of the waiting for the
    disk; what it may lose when the power fails are the last trials, never the file."""

    def connected(connection: Any, record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    engine.dispose()  # connections made so far know nothing of this


def _unreachable(place: Place, error: BaseException) -> NoReturn:
    reason = getattr(error, "orig", None) or error.__cause__ or error
    first = (str(reason).strip().splitlines() or [type(error).__name__])[0]
    raise ValueError(f"cannot keep trials in {place}: {first}") from None
