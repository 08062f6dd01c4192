"""Compile many cases at once, in processes of their own, into the compiler's cache on disk.

The measurement itself then finds its code there. On a GPU machine that is lent by the minute,
compiling one case after the other would take most of the time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import torch

from zerotprune.data.models import load
from zerotprune.measure import speed as bench
from zerotprune.measure.accuracy import Contender
from zerotprune.surgery import attach


class Case(NamedTuple):
    """One contender at one batch size: what is compiled by itself."""

    model: str
    size: int | None
    precision: str
    contender: Contender
    batch: int


def run(cases: Sequence[Case], setup: bench.Setup, jobs: int) -> None:
    """What fails here fails again, and is reported, where it is measured."""

    def compile_alone(case: Case) -> str:
        # A plain process: the parent missed the cache for what multiprocessing's children compiled.
        told = pickle.dumps((case, setup))
        command = [sys.executable, "-m", "benchmarks.speed.precompile"]
        # As many processes as asked for, and no more: each would start some for itself.
        alone = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, input=told, capture_output=True, env=alone)
        if done.returncode == 0:
            return "compiled"
        lines = done.stderr.decode(errors="replace").split("\n")
        return "failed: " + next((line for line in reversed(lines) if line.strip()), "no reason")

    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(compile_alone, case): case for case in cases}
        for number, done in enumerate(as_completed(waiting), start=1):
            case = waiting[done]
            about = f"{case.model}, {case.contender.name}, batch {case.batch}"
            print(f"{number}/{len(cases)} {about}: {done.result()}", flush=True)


def compiled(case: Case, setup: bench.Setup) -> None:
    dtype: torch.dtype = getattr(torch, case.precision)
    built = load(case.model, size=case.size).to(setup.device, dtype).requires_grad_(False)
    images = bench.noise(built, case.batch, setup.device, dtype)
    attach(built, case.contender.schedule, setup.compute, setup.backend)
    torch.compiler.reset()
    with torch.inference_mode():
        torch.compile(built, fullgraph=True, dynamic=False, backend=setup.compiler)(images)


if __name__ == "__main__":
    compiled(*pickle.loads(sys.stdin.buffer.read()))
