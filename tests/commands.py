"""The command line as a user types it: each command a process of its own, or many in one."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from tests.nursery import Done, nursery

PYTHON = [sys.executable, "-W", "error", "-c"]
MAIN = "from zerotprune.cli import main; main()"


def command(*arguments: str) -> list[str]:
    return [*PYTHON, MAIN, *arguments]


def zerotprune(*arguments: str, cwd: Path | None = None) -> Done:
    return nursery().run(MAIN, *arguments, cwd=cwd or Path(), strict=True)


_SHELL = """
import contextlib, io, json, os, sys, traceback
from zerotprune.cli import main
for line in sys.stdin:
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
    print(json.dumps([code, out.getvalue(), error.getvalue()]), flush=True)
"""


@cache
def _shell() -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [*PYTHON, _SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(started.communicate)  # closes its input, which ends it
    return started


def quickly(*arguments: str, cwd: Path | None = None, limit: float = 180) -> Done:
    """The same in one process for all that come: most of a short command is importing torch.

    What does not end within so many seconds is killed, and a failure."""
    shell = _shell()
    assert shell.stdin is not None
    assert shell.stdout is not None
    watch = threading.Timer(limit, shell.kill)
    watch.start()
    try:
        shell.stdin.write(json.dumps([arguments, str((cwd or Path()).absolute())]) + "\n")
        shell.stdin.flush()
        answer = shell.stdout.readline()
    finally:
        watch.cancel()
    if not answer:
        _shell.cache_clear()
        raise AssertionError(f"{arguments} did not end within {limit} s, or ended its process")
    return Done(*json.loads(answer))
