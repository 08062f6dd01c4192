"""A search made ready and run: model, pictures in memory, study, trials under a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from optuna.study import Study
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ..backbones import backbone
from ..block import Method
from ..budgets import latency
from ..budgets.contenders import method_named
from ..budgets.surface import Surface
from ..calibrate.calibration import Calibration
from ..data.images import Pictures, batches, check_classes
from ..data.models import load
from ..schedule import Schedule
from ..search import storage
from ..search.halves import split
from ..search.identity import identity
from ..search.objective import Objective, Stack
from ..search.study import Order, directions, tally, work
from ..search.workers import Job, run
from .search_options import Budget, SearchSubject
from .subject import chosen_device

#: methods that act by a schedule's keep, similar and rounds, which is what is searched
METHODS = ("zero-tprune", "zero-tprune-uni", "cls-attention", "average-attention",
           "accumulated-attention", "random")  # fmt: skip


@dataclass
class Session:
    """Everything about one search but its trials."""

    subject: SearchSubject
    where: storage.Place
    model: nn.Module
    method: Method
    surface: Surface
    who: dict[str, str]
    device: str
    seed: int
    memory: float  # bytes for what blocks get
    console: Console
    halves: tuple[Stack, Stack]
    study: Study
    gmacs: float | None  # the budget; None: the whole front

    @cached_property
    def first(self) -> Objective:
        return Objective(self.model, self.method, self.halves[0], self.memory)

    @cached_property
    def second(self) -> Objective:
        """Only a few schedules come so far: nothing is kept for them."""
        return Objective(self.model, self.method, self.halves[1], memory=0)

    def time(self, schedule: Schedule) -> latency.Timed:
        images = one_batch(self.halves[0], self.subject.batch)
        return latency.measure(self.model, schedule, self.method, images)

    def explore(self, order: Order, workers: int) -> bool:
        """Run all trials; False if Ctrl-C came before the end."""
        with _bar(self.console, order) as advance:
            advance(self.study)
            try:
                if workers == 1:
                    work(self.study, order, self.surface, self.first, advance)
                else:
                    job = self._job(order, workers)
                    run(job, self.halves[0], workers, self.study, advance)
            except KeyboardInterrupt:
                return False
        return True

    def _job(self, order: Order, workers: int) -> Job:
        threads = max(1, torch.get_num_threads() // workers)
        precision = getattr(torch, self.subject.precision)
        return Job(self.subject.named(), self.device, precision, self.method, order, self.where,
                   self.who, self.memory / workers, threads)  # fmt: skip


def start(
    subject: SearchSubject,
    budget: Budget,
    where: storage.Place,
    *,
    front: bool,
    workers: int,
    seed: int,
    memory: float,
) -> Session:
    """All that can be wrong with what the user gave is found here, before anything is written."""
    device, console = chosen_device(subject.device), Console()
    if subject.method not in METHODS:
        raise ValueError(f"a search is for one of {', '.join(METHODS)}, got {subject.method!r}")
    model = load(**subject.named())
    method = method_named(subject.method)
    if subject.calibration is not None:
        method = Calibration.load_for(subject.calibration, subject.model, model).method(method)
    surface = Surface(backbone(model).geometry, method)
    asked = _asked(budget, surface, subject.batch, device)
    pictures = _pictures(subject, model)
    if len(pictures) < max(2, workers):
        raise ValueError(f"too few pictures: {len(pictures)}, for two halves and {workers} workers")
    who = identity(subject.model, model, pictures, labelled=subject.labels, budget=asked,
                   method=method, precision=subject.precision, seed=seed)  # fmt: skip
    goals = directions(subject.measure, front)
    # A file is made only when all else is ready; what is there already is looked at first of all.
    study = storage.open_study(where, who, goals) if storage.exists(where) else None
    model = model.to(device, getattr(torch, subject.precision))
    halves = _decoded(subject, pictures, device, seed, console)
    gmacs = None if study is None else storage.note(study, "gmacs")
    if gmacs is None:
        gmacs = _gmacs(subject, budget, model, method, surface, halves[0], console)
    study = study or storage.open_study(where, who, goals)
    gmacs = storage.noted(study, "gmacs", gmacs)
    return Session(subject, where, model, method, surface, who, device, seed, memory, console,
                   halves, study, gmacs)  # fmt: skip


def _asked(budget: Budget, surface: Surface, batch: int, device: str) -> str:
    """The budget in the user's words; one that cannot be met is refused."""
    if not budget.given:
        return "the whole front"
    if budget.measured:
        return f"{budget} measured at batch {batch} on {device}"
    if budget.keep is not None:
        if budget.keep > 1:
            raise ValueError(f"keep must be in (0, 1], got {budget.keep}")
        surface.check(budget.keep * surface.unpruned)
    if budget.gmacs is not None:
        surface.check(budget.gmacs)
    return str(budget)


def _gmacs(
    subject: SearchSubject,
    budget: Budget,
    model: nn.Module,
    method: Method,
    surface: Surface,
    stack: Stack,
    console: Console,
) -> float | None:
    """The budget in GMACs; one in time is measured. None stands for the whole front."""
    if budget.keep is not None:
        return budget.keep * surface.unpruned
    if not budget.measured:
        return budget.gmacs
    images = one_batch(stack, subject.batch)
    with console.status("measuring how fast pruned models are here"):
        found, timed = latency.budget_for(model, method, images, speedup=budget.speedup,
                                          latency_ms=budget.latency_ms)  # fmt: skip
    console.print(
        f"measured at batch {subject.batch} on {images.device}: unpruned {timed.unpruned:.4g} ms; "
        f"a schedule of the paper's form of {found:.3f} GMACs {timed.pruned:.4g} ms, "
        f"{timed.speedup:.2f} times as fast", highlight=False,
    )  # fmt: skip
    return found


def one_batch(stack: Stack, batch: int) -> Tensor:
    """For timing: as many pictures as are asked for, again and again if need be."""
    some = torch.cat(stack.images[:2])
    return some.repeat(-(-batch // len(some)), 1, 1, 1)[:batch]


def _pictures(subject: SearchSubject, model: nn.Module) -> Pictures:
    pictures = subject.pictures(model, labelled=subject.labels)
    outputs = int(getattr(model, "num_classes", 0))
    if subject.labels and outputs:
        check_classes(pictures, outputs)
    return pictures


def _decoded(
    subject: SearchSubject, pictures: Pictures, device: str, seed: int, console: Console
) -> tuple[Stack, Stack]:
    """All pictures in memory, in the run's precision, in two halves."""
    precision = getattr(torch, subject.precision)
    with console.status(f"decoding {len(pictures)} pictures"):
        held = list(batches(
            pictures, subject.batch, workers=2, strict=subject.strict,
            report=lambda message: console.print(f"left out: {message}", style="yellow"),
        ))  # fmt: skip
    if not held:
        raise ValueError(f"none of the pictures in {subject.data} can be read")
    images = torch.cat([each[0].to(precision) for each in held])
    labels = torch.cat([each[1] for each in held])
    which = split(labels.tolist() if subject.labels else None, len(images), seed)
    first, second = (
        Stack([each.to(device) for each in images[half].split(subject.batch)],
              list(labels[half].split(subject.batch)) if subject.labels else None)
        for half in which
    )  # fmt: skip
    return first, second


@contextmanager
def _bar(console: Console, order: Order) -> Iterator[Callable[[Study], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("searching", total=order.trials, note="")

        def advance(study: Study) -> None:
            count, best = tally(study, order)
            note = ""
            if best is not None:
                value = best.values[0]
                note = f"{value:.2f} %" if order.measure == "top1" else f"KL {value:.4f}"
            progress.update(bar, completed=count, note=note and f"best so far {note}")

        yield advance
