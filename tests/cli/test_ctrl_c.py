"""Ctrl-C at any moment of a command's life: exit code 130, no traceback, nothing half-written.

`make fuzz` tries other moments every time, and later ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import hostile
from tests.commands import MAIN
from tests.nursery import Nursery, nursery

MANY = int(os.environ.get("ZEROTPRUNE_FUZZ", "0"))
#: moments in a command's life, and in how many seconds: most of them are early, where a life has
#: most of its turns, from the first millisecond on
MOMENTS = {"importing": (6, 3.0 if MANY else 0.6), "running": (24, 6.0 if MANY else 0.4)}
FIRST = 0.001
LIMIT = 60.0  # seconds from the signal to the end, on a machine that is busy with other tests

DATA = ("demo", "images", "--workers", "0", "--batch", "1")
COMMANDS = {
    "info": ("info", "demo", "--cost", "0.7"),
    "show": ("show", "images", "--model", "demo", "--limit", "1", "--out", "new.png"),
    "evaluate": ("evaluate", *DATA, "--cost", "0.7", "--csv", "new.csv"),
    "workers": ("evaluate", "demo", "images", "--workers", "2", "--csv", "new.csv"),
    "compare": ("compare", *DATA, "--csv", "new.csv", "--plots", "."),
    "calibrate": ("calibrate", *DATA, "--out", "new.json"),
    "search": ("search", "demo", "images", "--cost", "0.7", "--out", "new.json", "--trials", "99"),
    "searchers": ("search", "demo", "images", "--cost", "0.7", "--out", "new.json", "--trials",
                  "9999", "--workers", "2"),
    "finetune": ("finetune", "demo", "images", "images", "--cost", "0.7", "--epochs", "2",
                 "--workers", "0", "--batch", "5", "--out", "new.safetensors"),
    "export": ("export", "demo", "--cost", "0.7", "--to", "torch", "--samples", "0", "--out",
               "new.pt2"),
    "bench": ("bench", "demo", "--mode", "eager", "--batch", "1", "--csv", "new.csv"),
    "demo": ("demo", "--out", "new.png", "--csv", "new.csv"),
    "app": ("app", "--port", "7999"),
}  # fmt: skip
#: what is written when all is done, or not at all; a search and a benchmark keep what is whole
WRITTEN = ("new.csv", "new.json", "new.png", "new.pt2", "new.pt2.json", "new.safetensors")
KEEPING = ("search", "searchers", "bench")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    hostile._images(folder)
    return folder


@pytest.fixture(scope="module", params=MOMENTS)
def born(request: pytest.FixtureRequest) -> Iterator[tuple[str, Nursery]]:
    """Each run is a fork that begins where `main` does, which has imported nothing yet: until then
    Ctrl-C is Python's own. Or it is one of a process that has imported everything."""
    if request.param == "running":
        yield request.param, nursery()
        return
    bare = Nursery(MAIN.partition(";")[0])
    yield request.param, bare
    bare.close()


def stopped(
    born: Nursery, arguments: tuple[str, ...], home: Path, after: float
) -> tuple[int, str, float]:
    """The exit code, what was said, and the seconds it took to end."""
    child = born.start(MAIN, *arguments, cwd=home)
    time.sleep(after)
    sent = time.monotonic()
    with contextlib.suppress(ProcessLookupError):  # it may have ended before
        os.killpg(child, signal.SIGINT)  # as a terminal does
    done = born.wait()
    return done.returncode, done.stdout + done.stderr, time.monotonic() - sent


@pytest.mark.parametrize("name", COMMANDS)
def test_one_ctrl_c_ends_it(name: str, born: tuple[str, Nursery], home: Path) -> None:
    phase, forking = born
    dice = random.Random(time.time_ns() if MANY else f"{name} {phase}")
    count, life = MOMENTS[phase]
    for moment in range(count):
        after = FIRST * (life / FIRST) ** dice.random()
        code, said, took = stopped(forking, COMMANDS[name], home, after)
        where = f"{name}, {after:.3f} s after its start (try {moment}): {said}"
        assert "Traceback" not in said, where
        assert took < LIMIT, where
        assert code in (0, 130), (code, where)
        left = [each.name for each in home.iterdir() if each.name.startswith(".zerotprune")]
        assert left == [], where
        if code == 130 and name not in KEEPING:
            assert not [new for new in WRITTEN if (home / new).exists()], where
        for each in home.glob("new.*"):
            each.unlink()
