"""A search made ready and run: images in memory in two halves, study, trials, choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from optuna.study import Study
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets import Budget, schedule_for
from ..budgets.surface import Surface
from ..data.images import ImageDataset, batches
from ..measure import latency
from ..measure.latency import TimeBudget, Timed, cost_for, time_schedule
from ..measure.speed import Precision
from ..method import Method
from ..schedule import Schedule
from ..surgery import restore_
from . import choice, storage
from .choice import Choice, Judged
from .config import Measure, SearchConfig, directions
from .halves import split
from .identity import identity
from .objective import Objective, Stack
from .storage import StudyLocation
from .study import FinishedTrial, TrialLog, work
from .workers import WorkerJob, run_workers

Say = Callable[[str], None]


@dataclass(frozen=True)
class SearchInputs:
    """What is searched on: a model, its images, and how they are run."""

    name: str  # of the model
    source: Mapping[str, Any]  # what `models.load` is told: workers load the model themselves
    model: nn.Module  # as it was loaded
    method: Method
    images: ImageDataset
    data: str  # where they are from
    labelled: bool
    batch: int
    device: str
    precision: Precision
    seed: int
    strict: bool = False  # stop at the first image that cannot be read

    @property
    def measure(self) -> Measure:
        return "top1" if self.labelled else "kl"

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype


@dataclass
class SearchRun:
    """Everything about one search but its trials. The model is cast, and on its device."""

    inputs: SearchInputs
    location: StudyLocation
    surface: Surface
    identity: dict[str, str]
    halves: tuple[Stack, Stack]
    study: Study
    gmacs: float | None  # the budget; None: the whole front
    memory: float  # bytes for what blocks get

    @cached_property
    def first(self) -> Objective:
        return Objective(self.inputs.model, self.inputs.method, self.halves[0], self.memory)

    @cached_property
    def second(self) -> Objective:
        """Only a few schedules come so far: nothing is kept for them."""
        return Objective(self.inputs.model, self.inputs.method, self.halves[1], memory=0)

    def explore(
        self, config: SearchConfig, workers: int, advance: Callable[[TrialLog], None]
    ) -> bool:
        """Run all trials; False if Ctrl-C came before the end."""
        try:
            advance(TrialLog(self.study, config).refresh())
            if workers == 1:
                work(self.study, config, self.surface, self.first, advance)
            else:
                run_workers(self._job(config, workers), self.halves[0], workers, self.study,
                            advance)  # fmt: skip
        except KeyboardInterrupt:
            return False
        return True

    def _job(self, config: SearchConfig, workers: int) -> WorkerJob:
        inputs, threads = self.inputs, max(1, torch.get_num_threads() // workers)
        return WorkerJob(inputs.source, inputs.device, inputs.dtype, inputs.method, config,
                         self.location, self.identity, self.memory / workers, threads)  # fmt: skip

    def judge(self, name: str, schedule: Schedule) -> Judged:
        price = self.surface.price(schedule)
        return Judged(name, schedule, price, self.first(schedule), self.second(schedule))

    def judge_trials(self, trials: Sequence[FinishedTrial]) -> list[Judged]:
        return [self.judge(f"trial {each.number}", each.schedule) for each in trials]

    def judge_unpruned(self) -> Judged:
        return Judged("unpruned", Schedule(), self.surface.unpruned, self.first.unpruned(),
                      self.second.unpruned())  # fmt: skip

    def judge_default(self) -> Judged | None:
        """What one gets without a search: the paper's form."""
        try:
            schedule = schedule_for(self.inputs.model, gmacs=self.gmacs, method=self.inputs.method)
        except ValueError:  # the paper's form does not reach as far as the space does
            return None
        return self.judge("paper's form", schedule)

    def choose(self, trials: Sequence[FinishedTrial], count: int) -> Choice:
        """By the second half, among the best so many of the first and the default."""
        measure = self.inputs.measure
        best = self.judge_trials(choice.finalists(trials, measure, count))
        return choice.choose(measure, self.judge_unpruned(), self.judge_default(), best)

    def time(self, schedule: Schedule) -> Timed:
        images = take_batch(self.halves[0], self.inputs.batch)
        return time_schedule(restore_(self.inputs.model), schedule, images, rounds=20)


def prepare(
    inputs: SearchInputs,
    budget: Budget | TimeBudget | None,
    location: StudyLocation,
    *,
    workers: int = 1,
    memory: float = 0.0,
    say: Say = lambda line: None,
) -> SearchRun:
    """All that can be wrong with what the user gave is found here, before anything is written."""
    model, method, count = inputs.model, inputs.method, len(inputs.images)
    surface = Surface(backbone(model).geometry, method)
    gmacs = None
    if isinstance(budget, Budget):
        gmacs = budget.gmacs_of(surface.unpruned)
        surface.check(gmacs)
    if count < max(2, workers):
        raise ValueError(f"too few images: {count}, for two halves and {workers} workers")
    who = identity(inputs.name, model, inputs.images, labelled=inputs.labelled,
                   budget=_in_words(budget, inputs), method=method, precision=inputs.precision,
                   seed=inputs.seed)  # fmt: skip
    goals = directions(inputs.measure, front=budget is None)
    # A file is made only when all else is ready; what is there already is looked at first of all.
    study = storage.open_study(location, who, goals) if storage.exists(location) else None
    model.to(inputs.device, inputs.dtype)
    halves = _decode(inputs, say)
    measured = None
    if isinstance(budget, TimeBudget):
        cost, timed = cost_for(model, budget, take_batch(halves[0], inputs.batch), method)
        measured = cost * surface.unpruned
        say(f"measured at batch {inputs.batch} on {inputs.device}: {measured:.3f} GMACs; {timed}")
    study = study or storage.open_study(location, who, goals)
    if measured is not None:
        gmacs = float(storage.write_note_once(study, "gmacs", measured))
        _refuse_other_measurement(budget, gmacs, measured)
    return SearchRun(inputs, location, surface, who, halves, study, gmacs, memory)


def _in_words(budget: Budget | TimeBudget | None, inputs: SearchInputs) -> str:
    if budget is None:
        return "the whole front"
    if isinstance(budget, Budget):
        return " ".join(f"--{name} {value:g}" for name, value in budget.given.items())
    return f"{budget} measured at batch {inputs.batch} on {inputs.device}"


def _refuse_other_measurement(budget: object, noted: float, now: float) -> None:
    """A time means other GMACs on another machine, or on one that is busy."""
    if abs(now / noted - 1) > latency.TOLERANCE:
        raise ValueError(
            f"{budget} was {noted:.3f} GMACs when this study began and is {now:.3f} as measured "
            "now: the machine is another or was busy; wait until it is idle, or give another "
            "--study"
        )


def take_batch(stack: Stack, batch: int) -> Tensor:
    """For timing: as many images as are asked for, again and again if need be."""
    some = torch.cat(stack.images[:2])
    return some.repeat(-(-batch // len(some)), 1, 1, 1)[:batch]


def _decode(inputs: SearchInputs, say: Say) -> tuple[Stack, Stack]:
    """All images in memory, in the run's precision, in two halves."""
    decoded = list(batches(inputs.images, inputs.batch, workers=2, strict=inputs.strict,
                           report=lambda message: say(f"left out: {message}")))  # fmt: skip
    if not decoded:
        raise ValueError(f"none of the images in {inputs.data} can be read")
    images = torch.cat([each[0].to(inputs.dtype) for each in decoded])
    labels = torch.cat([each[1] for each in decoded])
    which = split(labels.tolist() if inputs.labelled else None, len(images), inputs.seed)
    first, second = (
        Stack([each.to(inputs.device) for each in images[half].split(inputs.batch)],
              list(labels[half].split(inputs.batch)) if inputs.labelled else None)
        for half in which
    )  # fmt: skip
    return first, second
