"""Ctrl-C at any moment of a command's life: exit code 130, no traceback, nothing half-written.

`make fuzz` tries more moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import hostile

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
    "bench": ("bench", "demo", "--mode", "eager", "--batch", "1", "--csv", "new.csv"),
    "demo": ("demo", "--out", "new.png", "--csv", "new.csv"),
}  # fmt: skip

# All that commands import is there already; each run is a fork that begins where `main` does.
_NURSERY = """
import os, sys
sys.path.insert(0, {place!r})
if {warm}:
    import matplotlib.figure, optuna, timm, torch, torchvision
    import zerotprune.cli.bench, zerotprune.cli.calibrate, zerotprune.cli.compare
    import zerotprune.cli.demo, zerotprune.cli.search, zerotprune.cli.show, zerotprune.cli.info
    torch.set_num_threads(1)
for line in sys.stdin:
    arguments = line.rstrip("\\n").split("\\t")
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        out = os.open("out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in enumerate((nothing, out, out)):
            os.dup2(file, number)
        sys.argv = ["zerotprune", *arguments]
        from zerotprune.cli import main
        os.write(told, b".")
        main()
        sys.exit()
    os.read(ready, 1)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Starts commands, and says how they ended."""

    def __init__(self, home: Path, warm: bool) -> None:
        code = _NURSERY.format(place=str(Path(__file__).parents[2] / "src"), warm=warm)
        self.home = home
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=home, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def stopped(self, arguments: tuple[str, ...], after: float) -> tuple[int, str, float]:
        """The exit code, what was said, and the seconds it took to end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(arguments) + "\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        time.sleep(after)
        sent = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it may have ended before
            os.killpg(child, signal.SIGINT)  # as a terminal does
        code = int(self._process.stdout.readline())
        return code, (self.home / "out.txt").read_text(), time.monotonic() - sent

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    hostile._images(folder)
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["importing", "running"])
def nursery(request: pytest.FixtureRequest, home: Path) -> Iterator[Nursery]:
    started = Nursery(home, request.param)
    yield started
    started.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_one_ctrl_c_ends_it(name: str, nursery: Nursery) -> None:
    dice = random.Random(time.time_ns() if MANY else name)
    for moment in range(MOMENTS):
        after = dice.random() ** 2 * (4.0 if MANY else 1.2)
        code, said, took = nursery.stopped(COMMANDS[name], after)
        where = f"{name}, {after:.3f} s after its start (try {moment}): {said}"
        assert "Traceback" not in said, where
        assert took < LIMIT, where
        assert code in (0, 130), (code, where)
        left = [each.name for each in nursery.home.iterdir() if each.name.startswith(".zerotprune")]
        assert left == [], where
        if code == 130 and name in ("evaluate", "workers", "compare", "demo", "calibrate"):
            for new in ("new.csv", "new.json"):
                assert not (nursery.home / new).exists(), where
        for each in nursery.home.glob("new.*"):
            each.unlink()
