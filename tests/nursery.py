"""Scripts and commands in processes of their own, forked from one that has imported everything.

A process that begins as Python does spends most of a short life on importing torch. There are no
run-time type checks in these, which would break the graph of a compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]

#: what most of them import
EVERYTHING = """
import contextlib
import accelerate, cyclopts, matplotlib.figure, optuna, rich, timm, torch, torchvision
import torch._dynamo, torch.export
import zerotprune
import zerotprune.cli.bench, zerotprune.cli.calibrate, zerotprune.cli.compare, zerotprune.cli.demo
import zerotprune.cli.drift, zerotprune.cli.embed
import zerotprune.cli.export, zerotprune.cli.finetune, zerotprune.cli.info
import zerotprune.cli.search, zerotprune.cli.show
with contextlib.suppress(ImportError):
    import psycopg
with contextlib.suppress(ImportError):
    import pyarrow.parquet
torch.set_num_threads(1)
optuna.storages.RDBStorage("sqlite://")  # it imports most of what it needs when it is first used
torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(2, 2))  # so does this
torch.compiler.reset()
if hasattr(torch._dynamo.guards, "profile_guard_manager"):  # for logs; it empties caches
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
atexit.unregister(torch._dynamo.utils.dump_compile_times)
"""

_SERVER = """
import atexit, gc, json, os, signal, sys, traceback, warnings, weakref
sys.path[:0] = {places!r}
{preload}
for finalizer in list(weakref.finalize._registry):
    finalizer.atexit = False  # what is made here is not a child's to clear away
gc.collect()
gc.freeze()  # a child's collections leave alone what is here, and share it
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})  # a child lets it in when it is ready
ended = {{}}
for line in sys.stdin:
    wanted, *request = json.loads(line)
    if wanted == "end":
        child, patiently = request
        if child not in ended:
            pid, status = os.waitpid(child, 0 if patiently else os.WNOHANG)
            if pid:
                ended[child] = os.waitstatus_to_exitcode(status)
        print(json.dumps(ended.get(child)), flush=True)
        continue
    code, arguments, home, folder, strict = request
    ready, started = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.chdir(home)
        if "torch" in sys.modules:  # its pool of threads, made anew before two of them ask for it
            sys.modules["torch"].set_num_threads(1)
        nothing, stem = os.open(os.devnull, os.O_RDONLY), folder + "/" + str(os.getpid())
        files = [os.open(stem + name, os.O_WRONLY | os.O_CREAT) for name in (".out", ".error")]
        for number, file in enumerate((nothing, *files)):
            os.dup2(file, number)
        sys.argv = ["-c", *arguments]
        if strict:
            warnings.resetwarnings()
            warnings.simplefilter("error")
        script, names = compile(code, "<script>", "exec"), sys.modules["__main__"].__dict__
        ended = 0
        try:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # until the script has its own
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT}})
            os.write(started, b".")
            exec(script, names)
        except SystemExit as stopped:
            ended = stopped.code or 0
        except BaseException:
            ended = 1
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(ended)  # to take all apart that was imported would take seconds
    ended.pop(child, None)  # numbers come again
    os.read(ready, 1)
    os.close(ready)
    os.close(started)
    print(child, flush=True)
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Nursery:
    """A process that is forked for every child."""

    def __init__(self, preload: str = EVERYTHING) -> None:
        code = _SERVER.format(places=[str(ROOT / "src"), str(ROOT)], preload=preload)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONNODEBUGRANGES": "1"},
        )  # fmt: skip
        self._folder = tempfile.TemporaryDirectory()
        self._last = 0

    def start(
        self, code: str, *arguments: str, cwd: Path | None = None, strict: bool = False
    ) -> int:
        """Start a child in a process group of its own and return its number. If strict, warnings
        are errors in it."""
        home = str((cwd or ROOT).absolute())
        self._last = self._ask("start", code, arguments, home, self._folder.name, strict)
        return self._last

    def lives(self, child: int) -> bool:
        return self._ask("end", child, False) is None

    def wait(self, child: int | None = None, limit: float = 900) -> Done:
        """Wait for the end of a child, by default the last one. It is killed after `limit` seconds:
        a guard against hanging, not a measure of speed."""
        child = child or self._last
        watch = threading.Timer(limit, _kill, [child])
        watch.start()
        try:
            code = self._ask("end", child, True)
        finally:
            watch.cancel()
        files = [Path(self._folder.name, f"{child}.{name}") for name in ("out", "error")]
        texts = [file.read_text(errors="replace") for file in files]
        for file in files:
            file.unlink()
        return Done(code, *texts)

    def run(
        self, code: str, *arguments: str, cwd: Path | None = None, strict: bool = False,
        limit: float = 900,
    ) -> Done:  # fmt: skip
        """Run a child from start to end."""
        return self.wait(self.start(code, *arguments, cwd=cwd, strict=strict), limit)

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def _ask(self, *request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


@cache
def nursery() -> Nursery:
    """Return the one nursery that all tests of this process share."""
    started = Nursery()
    atexit.register(started.close)
    return started


def run_script(script: str, *arguments: str) -> list[str]:
    """Run a script in the project's root and return the lines it prints; it must not fail."""
    done = nursery().run(script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.splitlines()
