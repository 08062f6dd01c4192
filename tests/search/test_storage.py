"""Where trials are kept: one search a study, and notes."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import (
    IntegrityError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from tests.search.studies import Opener
from zerotprune.search.storage import (
    StorageLostError,
    StudyLocation,
    reporting_loss,
    set_once,
)
from zerotprune.search.study import SearchConfig


def test_a_search_of_another_model_or_data_is_refused(opened: Opener, tmp_path: Path) -> None:
    config, mine = SearchConfig(1, 0.2, "top1"), {"model": "demo", "weights": "a", "data": "b"}
    for _ in range(2):
        opened(config, **mine)
    for name in mine:
        with pytest.raises(ValueError, match=f"{name} {mine[name]} .*other"):
            opened(config, **{**mine, name: "other"})
    url = f"sqlite:///{tmp_path / 'y.db'}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    foreign = optuna.create_study(storage=storage, study_name="search", direction="maximize")
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(ValueError, match=r"y\.db.*'search'"):
        opened(config, "y.db", **mine)


def test_a_note_is_written_once_and_read_by_all(opened: Opener) -> None:
    config = SearchConfig(1, 0.2, "top1")
    mine, theirs = opened(config), opened(config)
    assert set_once(mine, "gmacs", 0.25) == 0.25
    assert set_once(theirs, "gmacs", 0.5) == 0.25
    assert set_once(mine, "gmacs", 0.5) == 0.25


def test_a_location_is_shown_without_its_password() -> None:
    assert str(StudyLocation("postgresql+psycopg://me:secret@host/x")).count("secret") == 0
    assert StudyLocation("trials.db").url == "sqlite:///trials.db"


LOSSES = [
    PendingRollbackError("not rolled back"),
    OperationalError("SELECT", {}, OSError("gone")),
]


@pytest.mark.parametrize("cause", LOSSES, ids=lambda cause: type(cause).__name__)
def test_a_loss_is_one_sentence_whatever_it_surfaced_as(cause: SQLAlchemyError) -> None:
    """Optuna wraps the error, or fails while it cleans up."""
    with pytest.raises(StorageLostError, match="was lost"), reporting_loss():
        raise StorageInternalError("the commit failed") from cause
    with pytest.raises(StorageLostError, match="was lost"), reporting_loss():  # noqa: PT012
        try:
            raise cause
        finally:
            raise UnboundLocalError


def test_an_error_that_is_no_loss_stays_what_it_is() -> None:
    with pytest.raises(StorageInternalError), reporting_loss():
        raise StorageInternalError("bad data") from IntegrityError("INSERT", {}, ValueError())
