"""Where trials are kept: one search a study, and notes."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import IntegrityError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from tests.search.studies import Opener
from zerotprune.search.config import SearchConfig
from zerotprune.search.storage import StudyLocation, persistently, write_note_once


def test_a_search_of_another_model_or_data_is_refused(opened: Opener, tmp_path: Path) -> None:
    config, mine = SearchConfig(1, 0.2, "top1"), {"model": "demo", "weights": "a", "data": "b"}
    for _ in range(2):
        opened(config, **mine)
    for name in mine:
        with pytest.raises(ValueError, match=f"its {name} is {mine[name]}, here it is other"):
            opened(config, **{**mine, name: "other"})
    url = f"sqlite:///{tmp_path / 'y.db'}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    foreign = optuna.create_study(storage=storage, study_name="search", direction="maximize")
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(ValueError, match="that is not of this command"):
        opened(config, "y.db", **mine)


def test_a_note_is_written_once_and_read_by_all(opened: Opener) -> None:
    config = SearchConfig(1, 0.2, "top1")
    mine, theirs = opened(config), opened(config)
    assert write_note_once(mine, "gmacs", 0.25) == 0.25
    assert write_note_once(theirs, "gmacs", 0.5) == 0.25
    assert write_note_once(mine, "gmacs", 0.5) == 0.25


def test_a_location_is_shown_without_its_password() -> None:
    assert str(StudyLocation("postgresql+psycopg://me:secret@host/x")).count("secret") == 0
    assert StudyLocation("trials.db").url == "sqlite:///trials.db"


def test_a_loss_in_the_middle_of_a_transaction_is_a_loss() -> None:
    """Its later statements fail by another name; what is wrong with the data fails at once."""

    def fails_once(by: SQLAlchemyError) -> int:
        tries.append(by)
        if len(tries) == 1:
            raise StorageInternalError("the commit failed") from by
        return 7

    tries = list[SQLAlchemyError]()
    assert persistently(lambda: fails_once(PendingRollbackError("not rolled back"))) == 7
    tries.clear()
    with pytest.raises(StorageInternalError):
        persistently(lambda: fails_once(IntegrityError("INSERT", {}, ValueError())))
