"""Ctrl-C at any moment of a command's life: exit code 130, no traceback, nothing half-written.

`make fuzz` tries more moments, other ones every time, and presses it in a real process of `demo`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from safetensors import safe_open

from tests.cli import hostile
from tests.commands import MAIN
from tests.nursery import Nursery, nursery

MANY = int(os.environ.get("ZEROTPRUNE_FUZZ", "0"))


class Moments(NamedTuple):
    """How often a command is interrupted, and the latest moment in seconds after its start. Most
    moments are early, when most happens."""

    hits: int
    latest: float


MOMENTS = {
    "importing": Moments(6 if MANY else 2, 3.0 if MANY else 0.6),
    "running": Moments(24 if MANY else 6, 6.0 if MANY else 0.4),
}
EARLIEST = 0.001
#: seconds, and many: it guards against hanging
LIMIT = 600.0

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
#: these go on for longer than any of the moments on every machine: none of them may be missed
LONG = ("searchers", "demo", "app")
#: this one is there to be ended by Ctrl-C, which is no failure
SERVING = ("app",)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    hostile._images(folder)
    return folder / "images"


@pytest.fixture(scope="module", params=MOMENTS)
def phase(request: pytest.FixtureRequest) -> Iterator[tuple[Moments, Nursery]]:
    """Fork each run at the start of `main`, from a process that has imported nothing yet or
    everything."""
    if request.param == "running":
        yield MOMENTS[request.param], nursery()
        return
    bare = Nursery(MAIN.partition(";")[0])
    yield MOMENTS[request.param], bare
    bare.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_one_ctrl_c_ends_it(
    name: str, phase: tuple[Moments, Nursery], images: Path, tmp_path: Path
) -> None:
    """A short command may end before the signal, which proves nothing. Later moments are then left
    out, and two thirds of all must have hit."""
    moments, forks = phase
    dice = random.Random(time.time_ns() if MANY else f"{name} {moments}")
    hits, misses, latest = 0, 0, moments.latest
    while hits < moments.hits:
        after = EARLIEST * (latest / EARLIEST) ** dice.random()
        home = tmp_path / str(hits + misses)
        home.mkdir()
        (home / "images").symlink_to(images)
        code, output = interrupt(forks, COMMANDS[name], home, after)
        where = f"{name}, {after:.3f} s after its start (try {hits + misses}): {output}"
        assert "Traceback" not in output, where
        check_whole(home, where)
        if code == 130 or (code == 0 and name in SERVING):
            hits += 1
            continue
        assert code == 0, (code, where)
        assert name not in LONG, where
        misses += 1
        latest = after / 2
        assert misses <= moments.hits / 2, where


def interrupt(
    forks: Nursery, arguments: tuple[str, ...], home: Path, after: float
) -> tuple[int, str]:
    """Return the exit code and the output."""
    child = forks.start(MAIN, *arguments, cwd=home)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):  # it may have ended before
        os.killpg(child, signal.SIGINT)  # as a terminal does
    done = forks.wait(child, LIMIT)
    return done.returncode, done.stdout + done.stderr


def check_whole(home: Path, where: str) -> None:
    """Check that each file is complete or absent."""
    assert not list(home.glob(".zerotprune*")), where
    for file in home.glob("new.*"):
        try:
            _read(file)
        except Exception as error:
            raise AssertionError(f"{file.name} is not whole: {where}") from error


def _read(file: Path) -> None:
    if file.suffix == ".csv":
        with file.open(newline="") as lines:
            columns = {len(row) for row in csv.reader(lines)}
        assert len(columns) == 1
        assert file.read_bytes().endswith(b"\n")
    elif file.suffix == ".json":
        json.loads(file.read_text())
    elif file.suffix == ".png":
        with Image.open(file) as image:
            image.load()
    elif file.suffix == ".pt2":
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None
    elif file.suffix == ".safetensors":
        with safe_open(file, "pt") as tensors:
            assert [tensors.get_tensor(key) for key in tensors.keys()]  # noqa: SIM118


class Ended(NamedTuple):
    """A real process and its Ctrl-C, if any: when it came, how the process ended and how long that
    took."""

    after: float
    code: int
    took: float
    output: str

    @property
    def by_python(self) -> bool:
        """Did it end while Python starts, before it handles the signal or while it imports
        `site`?"""
        ours = r'zerotprune: |zerotprune/cli/__init__\.py", line \d+, in main'
        return self.code in (1, -signal.SIGINT) and not re.search(ours, self.output)


@pytest.mark.skipif(not MANY, reason="takes minutes: make fuzz")
def test_a_real_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Press Ctrl-C at 200 moments from the start of the process on, half of them early ones."""
    # A background job of a shell ignores the signal, and so would every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    life = press_in_demo(tmp_path / "whole", None).took
    dice = random.Random()
    moments = [dice.uniform(0, life) for _ in range(100)]
    moments += [EARLIEST * (life / EARLIEST) ** dice.random() for _ in range(100)]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(
            lambda at: press_in_demo(tmp_path / str(at), moments[at]), range(len(moments))
        ))  # fmt: skip
    ours, before, missed = list[Ended](), list[Ended](), list[Ended]()
    for run in ended:
        (missed if run.code == 0 else before if run.by_python else ours).append(run)
    with capsys.disabled():
        took = [run.took for run in ours]
        latest = max((run.after for run in before), default=0)
        print(
            f"\nCtrl-C in a life of {life:.1f} s, at a load of {os.getloadavg()[0]:.1f}: "
            f"{len(ours)} ended in {statistics.median(took):.2f} s, at most {max(took):.2f} s; "
            f"{len(before)} in Python's own start, the last after {latest:.2f} s; "
            f"{len(missed)} came too late"
        )
    for run in ours:
        assert run.code == 130, run
        assert "Traceback" not in run.output, run
    # A life is shorter than the first one was where other work on the machine has ended since.
    assert len(missed) <= len(ended) / 4


def press_in_demo(home: Path, after: float | None) -> Ended:
    home.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "zerotprune", *COMMANDS["demo"], "--images", "25"],
        cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    begun = time.monotonic()
    if after is not None:
        time.sleep(after)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
    output = "".join(process.communicate(timeout=LIMIT))
    took = time.monotonic() - begun
    check_whole(home, f"demo, {after} s after its start: {output}")
    return Ended(after or 0, process.returncode, took, output)
