"""Storage that is lost during a search: on PostgreSQL, at a chosen moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import optuna
import psycopg
import pytest

from tests.commands import MAIN
from tests.nursery import nursery
from tests.search.conftest import Server
from tests.search.studies import SURFACES, complete_in, easy_outcome
from tests.waiting import wait_until
from zerotprune import Schedule
from zerotprune.search import storage
from zerotprune.search.objective import Outcome
from zerotprune.search.storage import StorageLostError, StudyLocation, open_study
from zerotprune.search.study import SearchConfig, finished, run_trials

SURFACE = SURFACES["shallow"]
CONFIG = SearchConfig(12, 0.7 * SURFACE.unpruned, "top1")
pytestmark = pytest.mark.usefixtures("connections")


def search(location: StudyLocation, fate: Callable[[], None] = lambda: None) -> optuna.Study:
    """Run all trials; call `fate` in the fifth."""
    study, calls = open_study(location, {"a": "b"}, CONFIG.directions), list[Schedule]()

    def objective(schedule: Schedule) -> Outcome:
        calls.append(schedule)
        if len(calls) == 5:
            fate()
        return easy_outcome(schedule)

    run_trials(study, CONFIG, SURFACE, objective)
    return study


def assert_exact(study: optuna.Study) -> None:
    """Check that all trials are there, none failed, and none was written twice."""
    assert {trial.state for trial in study.get_trials()} == {optuna.trial.TrialState.COMPLETE}
    assert len(finished(study, CONFIG)) == len(study.get_trials()) == 12


class Wire:
    """Pass bytes both ways until it is cut."""

    def __init__(self, port: int) -> None:
        self._to, self._ends = port, list[socket.socket]()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        with suppress(OSError):
            while True:
                near = self._door.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(2**16):
                other.sendall(data)

    def cut(self) -> None:
        while self._ends:
            end = self._ends.pop()
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._door.close()
        self.cut()


def test_a_backend_that_is_killed(server: Server) -> None:
    def kill() -> None:
        with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tester' "
                "AND pid <> pg_backend_pid()"
            )

    assert_exact(search(StudyLocation(server.url(), "killed"), kill))


def test_a_connection_that_is_cut(server: Server) -> None:
    wire = Wire(server.port)
    assert_exact(search(StudyLocation(server.url(wire.port), "cut"), wire.cut))
    wire.close()


def test_a_server_that_is_started_again(server: Server) -> None:
    def restart() -> None:
        server.stop()
        threading.Timer(0.5, server.start).start()

    assert_exact(search(StudyLocation(server.url(), "again"), restart))


def test_a_server_that_stays_away(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence after a while; the search goes on once the server is back."""
    monkeypatch.setattr(storage, "_SECONDS_TO_WAIT", 0.5)
    location = StudyLocation(server.url(), "away")
    with pytest.raises(StorageLostError, match="trials"):
        search(location, server.stop)
    server.start()
    study = open_study(location, {"a": "b"}, CONFIG.directions)
    assert len(finished(study, CONFIG)) == 4
    assert len(finished(search(location), CONFIG)) == 12


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_two_searches_that_share_a_process_number(server: Server) -> None:
    """As in two containers: nothing they write depends on the process number. `test_kills` covers
    different numbers."""
    location = StudyLocation(server.url(), "twins")
    with ThreadPoolExecutor(2) as both:
        done = [both.submit(search, location) for _ in range(2)]
        for future in done:
            future.result()
    study = open_study(location, {"a": "b"}, CONFIG.directions)
    assert {trial.state for trial in study.get_trials()} == {optuna.trial.TrialState.COMPLETE}
    assert len(finished(study, CONFIG)) == 12


def test_the_command_says_so_in_one_sentence(server: Server, folder: Path, tmp_path: Path) -> None:
    code = f"import zerotprune.search.storage as s; s._SECONDS_TO_WAIT = 1; {MAIN}"
    searching = nursery().start(
        code, "search", "demo", str(folder), "--cost", "0.5", "--trials", "99999", "--storage",
        server.url(), "--study", "command", cwd=tmp_path,
    )  # fmt: skip

    def begun() -> list[optuna.trial.FrozenTrial]:
        assert nursery().lives(searching), nursery().wait(searching)
        trials = _trials(server, "command")
        return trials if len(trials) >= 3 else []

    trials = wait_until(begun, "three trials", pause=0.05)
    server.stop()
    done = nursery().wait()
    server.start()
    assert done.returncode == 2, done
    assert done.stderr.startswith("zerotprune: the storage of the trials was lost: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert len(_trials(server, "command")) >= len(trials)


def _trials(server: Server, study: str) -> list[optuna.trial.FrozenTrial]:
    with suppress(KeyError):
        return complete_in(server.url(), study)
    return []
