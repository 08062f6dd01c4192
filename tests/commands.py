"""Run commands as a user types them: every command in its own process, or many in one."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.nursery import Done, nursery
from tests.waiting import GUARD

PYTHON = [sys.executable, "-W", "error", "-c"]
MAIN = "from zerotprune.cli import main; main()"


def command(*arguments: str) -> list[str]:
    return [*PYTHON, MAIN, *arguments]


def describe(arguments: Sequence[str], done: Done) -> str:
    """Describe a call that went wrong."""
    text = (
        f"zerotprune {shlex.join(arguments)}\nexit code {done.returncode}\n"
        f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    )
    return text.encode("utf-8", "backslashreplace").decode()


def zerotprune(*arguments: str, cwd: Path | None = None) -> Done:
    return nursery().run(MAIN, *arguments, cwd=cwd or Path(), strict=True, limit=GUARD)


_SHELL = """
import contextlib, io, json, os, sys, traceback
from zerotprune.cli import main
requests, answers = (open(path, mode) for path, mode in zip(sys.argv[1:], "rw"))
for line in requests:
    arguments, home = json.loads(line)
    sys.argv = ["zerotprune", *arguments]
    os.chdir(home)
    code, out, error = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        except BaseException:
            code = 1
            traceback.print_exc()
    print(json.dumps([code, out.getvalue(), error.getvalue()]), file=answers, flush=True)
"""


class _Shell:
    """One process that runs command after command, through two pipes."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pipes = [Path(folder, name) for name in ("requests", "answers")]
            for pipe in pipes:
                os.mkfifo(pipe)
            self._number = nursery().start(_SHELL, *map(str, pipes), strict=True)
            self._requests, self._answers = pipes[0].open("w"), pipes[1].open()

    def answer(self, arguments: tuple[str, ...], home: Path, limit: float) -> str:
        """Run a command; return nothing if it did not end in time."""
        watch = threading.Timer(limit, os.kill, [self._number, signal.SIGKILL])
        watch.start()
        try:
            self._requests.write(json.dumps([arguments, str(home.absolute())]) + "\n")
            self._requests.flush()
            return self._answers.readline()
        finally:
            watch.cancel()

    def wait(self) -> Done:
        """Wait for the end of the process."""
        return nursery().wait(self._number)

    def close(self) -> None:
        """End the process by closing its input."""
        self._requests.close()
        self._answers.close()


@cache
def _shell() -> _Shell:
    started = _Shell()
    atexit.register(started.close)
    return started


def quickly(*arguments: str, cwd: Path | None = None, limit: float = GUARD) -> Done:
    """Run a command in a process that all of them share, with everything imported.

    A command that does not end within `limit` seconds is killed and fails.
    """
    shell = _shell()
    answer = shell.answer(arguments, cwd or Path(), limit)
    if not answer:
        _shell.cache_clear()
        ended = describe(arguments, shell.wait())
        raise AssertionError(f"not ended within {limit:.0f} s, or with its process: {ended}")
    return Done(*json.loads(answer))
