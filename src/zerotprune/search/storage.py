"""Where trials are kept: a file or a server, opened, and held to one search for good."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import optuna
from optuna.study import Study, StudyDirection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)

from ..files import check_writable

_IDENTITY = "zerotprune"
_NOTES = "zerotprune-notes"
_SECONDS_TO_WAIT = 60
#: The last of them is what a later statement meets in a transaction whose connection was lost.
_LOST = (OperationalError, InterfaceError, PendingRollbackError)

Answer = TypeVar("Answer")


class StorageLostError(ValueError):
    """It did not come back within the time that one waits for it."""


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
        """For the eyes of people: without a password."""
        if self.file is not None:
            return self.storage
        return make_url(self.url).render_as_string(hide_password=True)

    def check(self) -> None:
        """Say at once, before any work is done, that trials could not be kept there."""
        if self.file is not None:
            check_writable(self.file)
            return
        try:
            make_url(self.url)
        except ArgumentError:
            raise ValueError(f"--storage {self.storage!r} is neither a file nor a URL") from None

    def may_hold_trials(self) -> bool:
        """A server is always asked."""
        return self.file is None or self.file.exists()


def open_study(
    location: StudyLocation, identity: Mapping[str, str], directions: list[StudyDirection]
) -> Study:
    """The study, a new one where there is none. One of another search is refused: trials of
    different searches must not be mixed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = _connect(location)
    try:
        study = optuna.create_study(
            storage=storage, study_name=location.study, directions=directions, load_if_exists=True
        )
        held = study.user_attrs.get(_IDENTITY)
        if held is None and not study.get_trials(deepcopy=False):
            study.set_user_attr(_IDENTITY, dict(identity))
            held = study.user_attrs[_IDENTITY]
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        _refuse_unreachable(location, error)
    if not isinstance(held, Mapping):
        raise ValueError(f"{location} holds a study {location.study!r} that is not of this command")
    for name in [*identity, *sorted(set(held) - set(identity))]:
        if held.get(name) != identity.get(name):
            raise ValueError(
                f"{location} belongs to another search: its {name} is {held.get(name, 'unknown')}, "
                f"here it is {identity.get(name, 'unknown')}; give another --storage or --study"
            )
    return study


def write_note_once(study: Study, name: str, value: Any) -> Any:
    """Write a note where there is none yet; what it says, whoever wrote it."""
    key = f"{_NOTES}-{name}"

    def write() -> Any:
        if key not in study.user_attrs:
            study.set_user_attr(key, value)
        return study.user_attrs[key]

    return persistently(write)


def persistently(call: Callable[[], Answer]) -> Answer:
    """What the storage answers. Where it is lost, a server that is started again or a disk that is
    full, it is asked again for a while: then one sentence. What it holds already stays there."""
    began = time.monotonic()
    while True:
        try:
            with deferred():
                return call()
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            reason = error if isinstance(error, SQLAlchemyError) else error.__cause__
            if not isinstance(reason, _LOST):
                raise
            if time.monotonic() - began > _SECONDS_TO_WAIT:
                raise StorageLostError(
                    f"the storage of the trials was lost: {_first_line(error)}; what is finished "
                    "is kept there, the same command goes on from it"
                ) from None
        time.sleep(0.2)


@contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C waits until this is done.

    For whatever speaks to the storage: an interrupt in the middle of a transaction leaves it open,
    and the next one, of the very same process, would wait for it in vain.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no interrupt comes here
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *caught: came.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


class _WriteAhead(sqlite3.Connection):
    """The write-ahead log saves most of the waiting for the disk; what it may lose when the power
    fails are the last trials, never the file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


def _connect(location: StudyLocation) -> optuna.storages.RDBStorage:
    """SQLite for files, and not Optuna's journal: a process that is killed while it writes leaves
    a journal with half a line or its lock behind, whereas a transaction of SQLite is there or is
    not, and its locks end with their process."""
    options: dict[str, Any] = {}
    if location.url.startswith("sqlite"):
        options = {"connect_args": {"timeout": _SECONDS_TO_WAIT, "factory": _WriteAhead}}
    for attempt in range(5):
        try:
            return optuna.storages.RDBStorage(location.url, engine_kwargs=options)
        except (SQLAlchemyError, ImportError, RuntimeError, OSError) as error:
            # Two that start at once on an empty storage both make the tables; one of them fails.
            beaten = isinstance(error, IntegrityError) or any(
                text in str(error) for text in ("already exists", "database is locked")
            )
            if attempt == 4 or not beaten:
                _refuse_unreachable(location, error)
            time.sleep(0.5 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def _refuse_unreachable(location: StudyLocation, error: BaseException) -> NoReturn:
    raise ValueError(f"cannot keep trials in {location}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    """Of what the database said, which others have put into words of their own."""
    reason = error
    while (inner := getattr(reason, "orig", None) or reason.__cause__) is not None:
        reason = inner
    return (str(reason).strip().splitlines() or [type(reason).__name__])[0]
