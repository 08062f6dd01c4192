"""Compile many cases at once, in processes of their own, into the compiler's cache on disk.

The measurement itself then finds its code there. On a GPU machine that is lent by the minute,
compiling one case after the other would take most of the time.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from zerotprune import bench, prune_
from zerotprune.budgets import Contender
from zerotprune.models import load


def run(
    model: str,
    size: int | None,
    precision: str,
    rounds: Mapping[int, Sequence[bench.Entrant]],
    setup: bench.Setup,
    jobs: int,
) -> None:
    """`rounds` are the entrants at every batch size. What fails here fails again, and is reported,
    where it is measured."""
    cases = [(each.contender, batch) for batch in rounds for each in rounds[batch]
             if not each.failure]  # fmt: skip

    def alone(contender: Contender, batch: int) -> int:
        # A plain process: the parent missed the cache for what multiprocessing's children compiled.
        case = pickle.dumps((model, size, precision, contender, batch, setup))
        done = subprocess.run([sys.executable, __file__], input=case, stderr=subprocess.DEVNULL)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(alone, *case): case for case in cases}
        for number, done in enumerate(as_completed(waiting), start=1):
            contender, batch = waiting[done]
            said = "failed" if done.result() else "compiled"
            print(f"{number}/{len(cases)} {contender.name}, batch {batch}: {said}", flush=True)


def compiled(
    model: str,
    size: int | None,
    precision: str,
    contender: Contender,
    batch: int,
    setup: bench.Setup,
) -> None:
    dtype: torch.dtype = getattr(torch, precision)
    built = load(model, size=size).to(setup.device, dtype).requires_grad_(False)
    images = bench.noise(built, batch, setup.device, dtype)
    prune_(built, contender.schedule, contender.method, **setup.options)
    torch.compiler.reset()
    with torch.inference_mode():
        torch.compile(built, fullgraph=True, dynamic=False, backend=setup.compiler)(images)


if __name__ == "__main__":
    compiled(*pickle.loads(sys.stdin.buffer.read()))
