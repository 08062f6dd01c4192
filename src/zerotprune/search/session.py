"""A search made ready and run: images in memory in two halves, study, trials, choice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from optuna.study import Study
from torch import Tensor

from ..backbones import backbone
from ..budgets import Budget, schedule_for
from ..budgets.surface import Surface
from ..data.images import batches
from ..measure import latency
from ..measure.latency import TimeBudget, Timed, cost_for, time_schedule
from ..plan import Plan
from ..schedule import Schedule
from ..surgery import restore_
from . import choice
from .choice import Choice, Comparison, Judged
from .config import SearchConfig, SearchInputs, directions, identify
from .objective import Objective, Stack
from .space import surface_of
from .storage import StudyLocation, open_study, write_note_once
from .study import FinishedTrial, TrialLog, work
from .workers import WorkerJob, run_workers


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
                inputs, threads = self.inputs, max(1, torch.get_num_threads() // workers)
                job = WorkerJob(inputs.source, inputs.device, inputs.dtype, inputs.method, config,
                                self.location, self.identity, self.memory / workers,
                                threads)  # fmt: skip
                run_workers(job, self.halves[0], workers, self.study, advance)
        except KeyboardInterrupt:
            return False
        return True

    def judge(self, name: str, schedule: Schedule) -> Judged:
        price = self.surface.price(schedule)
        return Judged(name, schedule, price, self.first(schedule), self.second(schedule))

    def judge_trials(self, trials: Sequence[FinishedTrial]) -> list[Judged]:
        return [self.judge(f"trial {each.number}", each.schedule) for each in trials]

    def judge_unpruned(self) -> Judged:
        return Judged("unpruned", Schedule(), self.surface.unpruned, self.first.unpruned(),
                      self.second.unpruned())  # fmt: skip

    def judge_default(self) -> Judged | None:
        """What one gets without a search: the method's own form."""
        try:
            schedule = schedule_for(self.inputs.model, gmacs=self.gmacs, method=self.inputs.method)
        except ValueError:  # that form does not reach as far as the space does
            return None
        return self.judge("method's form", schedule)

    def choose(self, trials: Sequence[FinishedTrial], count: int) -> Choice:
        """By the second half, among the best so many of the first and the default."""
        best = self.judge_trials(choice.pick_finalists(trials, count))
        return choice.choose(self.judge_unpruned(), self.judge_default(), best)

    def judge_front(self, trials: Sequence[FinishedTrial], count: int) -> Comparison:
        rows = self.judge_trials(choice.thin_out(choice.front(trials), count))
        return Comparison(self.judge_unpruned(), None, rows, None)

    def time(self, schedule: Schedule) -> Timed:
        images = take_batch(self.halves[0], self.inputs.batch)
        return time_schedule(restore_(self.inputs.model), schedule, images, rounds=20)


def prepare(
    inputs: SearchInputs,
    budget: Budget | TimeBudget | None,
    location: StudyLocation,
    *,
    workers: int,
    memory: float,
    say: Callable[[str], None],
) -> SearchRun:
    """All that can be wrong with what the user gave comes out here, before anything is written."""
    model, method, count = inputs.model, inputs.method, len(inputs.images)
    surface = surface_of(backbone(model).geometry, method)
    Plan(surface.cheapest(), surface.geometry).check()
    gmacs = None
    if isinstance(budget, Budget):
        gmacs = budget.gmacs_of(surface.unpruned)
        surface.check(gmacs)
    if count < max(2, workers):
        raise ValueError(f"too few images: {count}, for two halves and {workers} workers")
    identity = identify(inputs, _describe(budget, inputs))
    goals = directions(inputs.measure, front=budget is None)
    # A file is made only when all else is ready; what is there already is looked at first of all.
    study = open_study(location, identity, goals) if location.may_hold_trials() else None
    model.to(inputs.device, inputs.dtype)
    halves = _decode(inputs, say)
    measured = None
    if isinstance(budget, TimeBudget):
        cost, timed = cost_for(model, budget, take_batch(halves[0], inputs.batch), method)
        measured = cost * surface.unpruned
        say(f"measured at batch {inputs.batch} on {inputs.device}: {measured:.3f} GMACs; {timed}")
    study = study or open_study(location, identity, goals)
    if measured is not None:
        gmacs = float(write_note_once(study, "gmacs", measured))
        if abs(measured / gmacs - 1) > latency.TOLERANCE:
            raise ValueError(
                f"{budget} was {gmacs:.3f} GMACs when this study began and is {measured:.3f} as "
                "measured now: the machine is another or was busy; wait until it is idle, or give "
                "another --study"
            )
    return SearchRun(inputs, location, surface, identity, halves, study, gmacs, memory)


def _describe(budget: Budget | TimeBudget | None, inputs: SearchInputs) -> str:
    if budget is None:
        return "the whole front"
    if isinstance(budget, Budget):
        return " ".join(f"--{name} {value:g}" for name, value in budget.given.items())
    return f"{budget} measured at batch {inputs.batch} on {inputs.device}"


def take_batch(stack: Stack, batch: int) -> Tensor:
    """For timing: as many images as are asked for, again and again if need be."""
    some = torch.cat(stack.images[:2])
    return some.repeat(-(-batch // len(some)), 1, 1, 1)[:batch]


def _decode(inputs: SearchInputs, say: Callable[[str], None]) -> tuple[Stack, Stack]:
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


def split(labels: Sequence[int] | None, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Which images are in which half: as many of each class as can be, by chance otherwise.

    Schedules are ranked on the first half and chosen on the second. The halves differ by one image
    at most, and so do the images of one class in them.
    """
    if count < 2:
        raise ValueError(f"a search needs two images at least, one for each half; got {count}")
    dice = random.Random(seed)
    classes: dict[int, list[int]] = {}
    for at in range(count):
        classes.setdefault(0 if labels is None else labels[at], []).append(at)
    paired, single = list[int](), list[int]()
    for _, members in sorted(classes.items()):
        dice.shuffle(members)
        if len(members) % 2:
            single.append(members.pop())
        paired += members
    # Single ones go with their neighbours in the list of classes, alike more often than not.
    row = paired + single
    first, second = row[::2], row[1::2]
    for at in range(len(second)):
        if dice.random() < 0.5:
            first[at], second[at] = second[at], first[at]
    return sorted(first), sorted(second)
