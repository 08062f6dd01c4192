"""Several processes on one machine that work on one study."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from optuna.study import Study

from ..backbones import backbone
from ..data.models import load
from ..interrupts import kept_from_children
from ..method import Method
from ..temporary import private_folder
from .config import SearchConfig
from .objective import Objective, Stack
from .space import surface_of
from .storage import StorageLostError, StudyLocation, open_study
from .study import TrialLog, work


@dataclass(frozen=True)
class WorkerJob:
    """All that a worker needs: it starts as a bare process."""

    model: Mapping[str, Any]  # what `models.load` is told
    device: str
    precision: torch.dtype
    method: Method
    config: SearchConfig
    location: StudyLocation
    identity: Mapping[str, str]
    memory: float  # bytes for what blocks get, of each worker
    threads: int  # of each worker, on a CPU


def run_workers(
    job: WorkerJob, stack: Stack, count: int, study: Study, advance: Callable[[TrialLog], None]
) -> None:
    """Start so many workers, and wait until all have ended.

    The images reach them as a file that they map into memory: it is there once for all of them,
    and unlike shared memory it is not limited to a fraction of it.
    """
    log = TrialLog(study, job.config)
    with private_folder() as folder:
        file = folder / "images.pt"
        torch.save(([each.cpu() for each in stack.images], stack.labels), file)
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=_work_on, args=(job, file, os.getpid(), at == 0), daemon=True)
            for at in range(count)
        ]
        try:
            with kept_from_children():
                for worker in workers:
                    worker.start()
            while any(worker.is_alive() for worker in workers):
                advance(log.refresh())
                time.sleep(0.3)
            advance(log.refresh())
        finally:  # after Ctrl-C there may be some left: a trial is written whole, or is not there
            started = [worker for worker in workers if worker.pid is not None]
            for worker in started:
                worker.kill()
            for worker in started:
                worker.join()
    broken = [worker.exitcode for worker in workers if worker.exitcode]
    if broken and not log.full:
        raise ChildProcessError(
            f"{len(broken)} of {count} workers ended early (exit code {broken[0]}); what is "
            "finished is kept, the same command goes on from there"
        )


def _work_on(job: WorkerJob, file: Path, parent: int, first: bool) -> None:
    torch.set_num_threads(job.threads)
    images, labels = torch.load(file, mmap=True, weights_only=True)
    stack = Stack([each.to(job.device) for each in images], labels)
    model = load(**job.model).to(job.device, job.precision)
    study = open_study(job.location, job.identity, job.config.directions)
    surface = surface_of(backbone(model).geometry, job.method)
    objective = Objective(model, job.method, stack, job.memory)
    # A parent that was killed can stop nobody: its workers look whether it is still theirs.
    with suppress(StorageLostError):  # the parent has lost it as well, and says so
        work(study, job.config, surface, objective, alone=False, begins=first,
             wanted=lambda: os.getppid() == parent)  # fmt: skip
