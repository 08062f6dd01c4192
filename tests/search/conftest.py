"""Fixtures of the search: studies that are closed, a folder of images, a PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.cli.test_evaluate import _save
from tests.search.studies import Opener
from tests.waiting import GUARD
from zerotprune.data import demo
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import SearchConfig


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    """Collect all connections to databases, and close them afterwards."""
    made: list[Any] = []

    def note(connection: Any, record: object) -> None:
        made.append(connection)

    event.listen(Engine, "connect", note)
    yield made
    event.remove(Engine, "connect", note)
    for connection in made:
        connection.close()


@pytest.fixture
def opened(tmp_path: Path, connections: list[Any]) -> Opener:
    """Open studies in files."""

    def make(config: SearchConfig, name: str = "x.db", **who: str) -> optuna.Study:
        location = StudyLocation(str(tmp_path / name))
        return open_study(location, who or {"a": "b"}, config.directions)

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save one of the demo's images for each of its ten classes."""
    root = tmp_path_factory.mktemp("data") / "digits"
    images, labels = demo.images(80, seed=8)
    for number in range(10):
        (root / str(number)).mkdir(parents=True)
        for at in (labels == number).nonzero()[:1, 0].tolist():
            _save(images[at], root / str(number) / f"{at:03d}.png")
    return root


class Server:
    """A private PostgreSQL server, which can be stopped and started again."""

    def __init__(self) -> None:
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        candidates = [shutil.which("initdb")] + [str(place / "initdb") for place in places]
        binaries = next(
            (Path(path).parent for path in candidates if path and Path(path).exists()), None
        )
        if binaries is None:
            pytest.skip("no PostgreSQL server is installed here (initdb is not to be found)")
        # Not in pytest's folder, which another run may close to all users but its own.
        self.root, self._user = Path(tempfile.mkdtemp(prefix="zerotprune-postgres-")), None
        self._binaries = binaries
        if os.geteuid() == 0:  # it refuses to run as root
            try:
                self._user = pwd.getpwnam("postgres").pw_name
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            shutil.chown(self.root, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._call("initdb", "-U", "tester", "-A", "trust", "--no-sync")
        self.start()

    def url(self, port: int | None = None) -> str:
        return f"postgresql+psycopg://tester@127.0.0.1:{port or self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self.root}"
        self._control("-l", str(self.root / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        self._call("pg_ctl", "--wait", "--timeout", str(int(GUARD)), *arguments)

    def _call(self, name: str, *arguments: str) -> None:
        where = ("-D", str(self.root / "data"))
        subprocess.run([str(self._binaries / name), *where, *arguments], user=self._user,
                       cwd=self.root, stdout=subprocess.DEVNULL, check=True)  # fmt: skip


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()
    shutil.rmtree(started.root)
