"""Store trials in a file or a database server, with each study bound to one search.

The storage is Optuna's, and so is its protection against failures: a trial is running, then
finished, in one transaction each; a running one has a heartbeat, and if its worker is lost, other
workers mark it failed and retry it.
"""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import Study, StudyDirection
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)

from ..data.fingerprint import check_same
from ..safety.files import check_writable

_FINGERPRINT = "zerotprune"
_SECONDS_TO_WAIT = 60
_HEARTBEAT_SECONDS, _GRACE_SECONDS = 20, 120
#: The last is what a later statement gets in a transaction that lost its connection.
_LOST = (OperationalError, InterfaceError, PendingRollbackError)


class StorageLostError(ValueError):
    """The storage did not come back in time."""


@dataclass(frozen=True)
class StudyLocation:
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
        """Return the location without its password."""
        if self.file is not None:
            return self.storage
        return make_url(self.url).render_as_string(hide_password=True)

    def check(self) -> None:
        """Refuse a place that cannot store trials, before any work is done."""
        if self.file is not None:
            check_writable(self.file)
            return
        try:
            make_url(self.url)
        except ArgumentError:
            raise ValueError(f"--storage {self.storage!r} is neither a file nor a URL") from None

    def may_exist(self) -> bool:
        """Return whether a study may exist; only a server knows for sure."""
        return self.file is None or self.file.exists()


def open_study(
    location: StudyLocation, fingerprint: Mapping[str, str], directions: list[StudyDirection]
) -> Study:
    """Open the study, or create it. A study of another search is refused: trials of different
    searches must not be mixed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(
            storage=_connect(location.url),
            study_name=location.study,
            directions=directions,
            load_if_exists=True,
        )
        if not study.get_trials(deepcopy=False):
            set_once(study, _FINGERPRINT, dict(fingerprint))
        stored = study.user_attrs.get(_FINGERPRINT)
    except (SQLAlchemyError, StorageInternalError, ImportError, RuntimeError, OSError) as error:
        raise ValueError(f"cannot store trials in {location}: {_first_line(error)}") from None
    if not isinstance(stored, Mapping):
        raise ValueError(
            f"{location} has a study {location.study!r} of another program: give another --study"
        )
    check_same(stored, fingerprint, f"{location} belongs to another search",
               "give another --storage or --study")  # fmt: skip
    return study


def set_once(study: Study, name: str, value: Any) -> Any:
    """Set an attribute of the study if it is not set yet, and return its value."""
    if name not in study.user_attrs:
        study.set_user_attr(name, value)
    return study.user_attrs[name]


@contextmanager
def reporting_loss() -> Iterator[None]:
    """Report the loss of the storage in one sentence, whichever error it caused."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _LOST):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise StorageLostError(
            f"the storage of the trials was lost: {_first_line(cause)}; finished trials are kept "
            "there, run the same command again to continue"
        ) from None


class _Storage(RDBStorage):
    def record_heartbeat(self, trial_id: int) -> None:
        """Record a heartbeat. Ignore errors: the calling thread has no one to report them to."""
        with suppress(SQLAlchemyError, StorageInternalError):
            super().record_heartbeat(trial_id)


class _WriteAhead(sqlite3.Connection):
    """Use the write-ahead log, which saves most of the waiting for the disk. A power failure may
    lose the last trials, but never the file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


def _connect(url: str) -> RDBStorage:
    """Open the storage.

    Files are SQLite and not Optuna's journal: a process that is killed while it writes leaves half
    a line or its lock in a journal, whereas SQLite's transactions are complete or absent, and its
    locks end with their process.
    """
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        options = {"connect_args": {"timeout": _SECONDS_TO_WAIT, "factory": _WriteAhead}}
    for attempt in range(5):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                storage = _Storage(
                    url,
                    options,
                    heartbeat_interval=_HEARTBEAT_SECONDS,
                    grace_period=_GRACE_SECONDS,
                    heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
                )
            event.listen(storage.engine, "do_connect", _connect_patiently)
            return storage
        except (SQLAlchemyError, RuntimeError) as error:
            # Two that start at once on an empty storage both make the tables; one of them fails.
            beaten = isinstance(error, IntegrityError) or any(
                text in str(error) for text in ("already exists", "database is locked")
            )
            if attempt == 4 or not beaten:
                raise
            time.sleep(0.5 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def _connect_patiently(dialect: Any, record: object, args: Any, kwargs: Any) -> Any:
    """Reconnect to a server that was there before; wait for it while it restarts."""
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    while True:
        try:
            return dialect.connect(*args, **kwargs)
        except dialect.loaded_dbapi.OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _first_line(error: BaseException) -> str:
    """Return the first line of the database's own message, without the wrappers around it."""
    while (inner := getattr(error, "orig", None) or error.__cause__) is not None:
        error = inner
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
