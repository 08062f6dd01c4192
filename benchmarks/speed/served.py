"""Compile many cases at once, each in a process of its own that then times it when it is asked to.

On a GPU machine that is lent by the minute, compiling one case after the other would take most of
the time. All processes stay until the end, and only one of them runs at a time: so cases are still
timed in turn.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from zerotprune.clock import Call, room_for, stopwatch
from zerotprune.data.models import load
from zerotprune.measure import speed as bench
from zerotprune.measure.speed import ready
from zerotprune.shapes import Precision
from zerotprune.surgery import attach

Report = Callable[[str], None]


class Case(NamedTuple):
    """One contender at one batch size, compiled by itself."""

    model: str
    size: int | None
    precision: Precision
    entrant: bench.Entrant
    batch: int


class Served:
    """A process that has compiled one case, as seen by the process that asks for times."""

    def __init__(self, module: str, *arguments: str, sent: bytes = b"") -> None:
        # No more processes than asked for: each compiler would start some for itself.
        alone = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, env=alone,
        )  # fmt: skip
        self._send(sent)
        self.peaks: dict[str, int] = self._answer()  # memory in bytes, by mode

    def time(self, mode: str, repeat: int) -> float:
        """Return the seconds that `repeat` calls take together."""
        self._send(json.dumps([mode, repeat]).encode())
        return float(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(len(message).to_bytes(8, "big") + message)
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        raise RuntimeError(lines[-1] if lines else "the process ended without a word")


def received() -> bytes:
    """Return the next message from the parent process; empty at the end."""
    length = int.from_bytes(sys.stdin.buffer.read(8), "big")
    return sys.stdin.buffer.read(length)


def serve(make: Callable[[], Mapping[str, tuple[Call, int]]], device: str) -> None:
    """Prepare one call per mode, and time them until no more requests come."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever compilers print is not an answer
    calls, clock = make(), stopwatch(device)
    print(json.dumps({mode: peak for mode, (_, peak) in calls.items()}), file=answers, flush=True)
    while message := received():
        mode, repeat = json.loads(message)
        print(clock(calls[mode][0], repeat), file=answers, flush=True)


def measure(
    groups: Sequence[Sequence[Case]], setup: bench.Setup, jobs: int, say: Report
) -> list[bench.Group]:
    """Compile all cases, then time those of each group in turn."""
    cases = [case for group in groups for case in group]
    calls = [("benchmarks.speed.served", (), pickle.dumps((case, setup))) for case in cases]
    names = [f"{case.model}, {case.entrant.contender.name}, batch {case.batch}" for case in cases]
    started = start(calls, names, jobs, say)
    following = iter(started)
    try:
        return [_timed([(case, next(following)) for case in group], setup) for group in groups]
    finally:
        close(started)


def start(
    calls: Sequence[tuple[str, Sequence[str], bytes]], names: Sequence[str], jobs: int, say: Report
) -> list[Served | str]:
    """Start a process per call, a few at a time until they have compiled. Return them, or why they
    failed. A call is a module, its arguments and the message it is sent."""

    def begin(name: str, call: tuple[str, Sequence[str], bytes]) -> Served | str:
        module, arguments, sent = call
        try:
            process = Served(module, *arguments, sent=sent)
        except (RuntimeError, OSError) as error:  # the others go on
            say(f"{name}: {error}")
            return str(error)
        say(f"{name}: ready")
        return process

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(begin, names, calls))


def close(started: Sequence[Served | str]) -> None:
    for process in started:
        if isinstance(process, Served):
            process.close()


def _timed(cases: Sequence[tuple[Case, Served | str]], setup: bench.Setup) -> bench.Group:
    speeds, warm = list[bench.Speed](), list[tuple[bench.Speed, Call]]()
    for case, outcome in cases:
        for mode in setup.modes:
            speed = bench.Speed(case.entrant, mode, case.batch, case.precision)
            speeds.append(speed)
            if isinstance(outcome, str):
                speed.failure = outcome[:100]
                continue
            speed.peak_memory = outcome.peaks[mode]
            warm.append((speed, Remote(outcome, mode)))
    bench.take_turns(warm, setup.rounds, ask)
    return bench.Group(speeds)


@dataclass(frozen=True)
class Remote:
    """A case in another process, in place of a call in this one. `ask` is its clock."""

    process: Served
    mode: str

    def __call__(self) -> None:
        self.process.time(self.mode, 1)


def ask(call: Call, repeat: int) -> float:
    assert isinstance(call, Remote)
    return call.process.time(call.mode, repeat)


def _make(case: Case, setup: bench.Setup) -> dict[str, tuple[Call, int]]:
    dtype: torch.dtype = getattr(torch, case.precision)
    torch.manual_seed(bench.SEED)
    model = load(case.model, size=case.size).to(setup.device, dtype).requires_grad_(False)
    images = bench.noise(model, case.batch, setup.device, dtype)
    attach(model, case.entrant.contender.schedule, setup.compute, setup.backend)
    with room_for(1):
        compiled: Any = torch.compile(model, fullgraph=True, dynamic=False, backend=setup.compiler)
        return {
            mode: ready(model if mode == "eager" else compiled, images, mode)
            for mode in setup.modes
        }


if __name__ == "__main__":
    case, setup = pickle.loads(received())
    with torch.inference_mode():
        serve(lambda: _make(case, setup), setup.device)
