"""Ctrl-C at any moment of a command's life: exit code 130, no traceback, nothing half-written.

`make fuzz` tries more moments.
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
MOMENTS = min(30, MANY) or 1
LIMIT = 60.0  # seconds from the signal to the end, on a machine that is busy with other tests

DATA = ("demo", "images", "--workers", "0", "--batch", "1")
COMMANDS = {
    "info": ("info", "demo", "--cost", "0.7"),
    "show": ("show", "images", "--model", "demo", "--out", "new.png"),
    "evaluate": ("evaluate", *DATA, "--cost", "0.7", "--csv", "new.csv"),
    "workers": ("evaluate", "demo", "images", "--workers", "2", "--csv", "new.csv"),
    "compare": ("compare", *DATA, "--csv", "new.csv", "--plots", "."),
    "calibrate": ("calibrate", *DATA, "--out", "new.json"),
    "search": ("search", "demo", "images", "--cost", "0.7", "--out", "new.json", "--trials", "99"),
    "searchers": ("search", "demo", "images", "--cost", "0.7", "--out", "new.json", "--trials",
                  "9999", "--workers", "2"),
    "finetune": ("finetune", "demo", "images", "images", "--cost", "0.7", "--epochs", "2",
                 "--workers", "0", "--batch", "5", "--out", "new.safetensors"),
    "bench": ("bench", "demo", "--mode", "eager", "--batch", "1", "--csv", "new.csv"),
    "demo": ("demo", "--out", "new.png", "--csv", "new.csv"),
}  # fmt: skip


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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    hostile._images(folder)
    return folder


@pytest.fixture(scope="module", params=["importing", "running"])
def born(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """Each run is a fork that begins where `main` does: before all imports, or after them."""
    if request.param == "running":
        yield nursery()
        return
    bare = Nursery("from zerotprune.cli import main")
    yield bare
    bare.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_one_ctrl_c_ends_it(name: str, born: Nursery, home: Path) -> None:
    dice = random.Random(time.time_ns() if MANY else name)
    for moment in range(MOMENTS):
        after = dice.random() ** 2 * (4.0 if MANY else 1.2)
        code, said, took = stopped(born, COMMANDS[name], home, after)
        where = f"{name}, {after:.3f} s after its start (try {moment}): {said}"
        assert "Traceback" not in said, where
        assert took < LIMIT, where
        assert code in (0, 130), (code, where)
        left = [each.name for each in home.iterdir() if each.name.startswith(".zerotprune")]
        assert left == [], where
        if code == 130 and name in ("evaluate", "workers", "compare", "demo", "calibrate"):
            for new in ("new.csv", "new.json"):
                assert not (home / new).exists(), where
        for each in home.glob("new.*"):
            each.unlink()
