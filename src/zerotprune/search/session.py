"""Prepare a search, run it in one process or in several, and choose its result."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from optuna.study import Study
from optuna.trial import FrozenTrial
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets import Budget, schedule_for, speed
from ..budgets.speed import TimeBudget, Timed, cost_for, time_schedule
from ..data.fingerprint import fingerprint_model, images_hash
from ..data.images import ImageDataset, batches
from ..data.models import load
from ..embed.engines import pickle_error
from ..measure import records
from ..measure.accuracy import Mean
from ..method import Method
from ..methods import to_data
from ..plan import Plan
from ..safety.files import private_folder, replacing
from ..safety.interrupts import acknowledge, deferred, kept_from_children
from ..schedule import Schedule
from ..shapes import Precision
from ..surgery import restore_
from . import choice, surface
from .choice import Choice, Comparison, Judged
from .objective import Objective, Outcome, Stack, split_halves
from .storage import StorageLostError, StudyLocation, open_study, reporting_loss, set_once
from .study import FinishedTrial, Measure, SearchConfig, directions, finished, run_trials
from .surface import Surface, surface_of

OnTrials = Callable[[list[FrozenTrial]], None]


@dataclass(frozen=True)
class SearchInputs:
    """The inputs of a search: a model, its images, and how to run them."""

    name: str  # of the model
    source: Mapping[str, Any]  # the arguments of `models.load`: workers load the model themselves
    model: nn.Module  # as it was loaded
    method: Method
    images: ImageDataset
    data: str  # where they are from
    labeled: bool
    batch: int
    device: str
    precision: Precision
    seed: int
    strict: bool  # stop at the first image that cannot be read

    @property
    def measure(self) -> Measure:
        return "top1" if self.labeled else "kl"

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype


def fingerprint_search(inputs: SearchInputs, budget: Budget | TimeBudget | None) -> dict[str, str]:
    """Return what two searches must have in common to share trials.

    Call it before the weights are cast to another precision.
    """
    _, height, width = backbone(inputs.model).input_shape
    model = fingerprint_model(inputs.name, inputs.model)
    return {
        "model": model["name"],
        "weights": model["weights"],
        "image size": f"{height}×{width}",
        # Before the data, whose hash depends on the labels as well: the first difference is named.
        "objective": "top-1" if inputs.labeled else "KL divergence",
        "data": f"{len(inputs.images)} images {images_hash(inputs.images, inputs.labeled)[:16]}",
        "budget": _describe(budget, inputs),
        "method": json.dumps(to_data(inputs.method)),
        "precision": inputs.precision,
        "seed": str(inputs.seed),
        "space": str(surface.VERSION),
    }


def _describe(budget: Budget | TimeBudget | None, inputs: SearchInputs) -> str:
    if budget is None:
        return "the whole front"
    if isinstance(budget, Budget):
        return " ".join(f"--{name} {value:g}" for name, value in budget.options.items())
    return f"{budget} measured at batch {inputs.batch} on {inputs.device}"


@dataclass
class SearchRun:
    """Everything about one search except its trials. The model is on its device, in its
    precision."""

    inputs: SearchInputs
    location: StudyLocation
    surface: Surface[Any]
    fingerprint: dict[str, str]
    halves: tuple[Stack, Stack]
    study: Study
    gmacs: float | None  # the budget; None: the whole front
    memory: float  # bytes for what blocks get

    @cached_property
    def first(self) -> Objective:
        return Objective(self.inputs.model, self.inputs.method, self.halves[0], self.memory)

    @cached_property
    def second(self) -> Objective:
        """The objective on the second half. Few schedules get this far, so nothing is cached."""
        return Objective(self.inputs.model, self.inputs.method, self.halves[1], memory=0)

    def explore(self, config: SearchConfig, workers: int, advance: OnTrials) -> bool:
        """Run all trials; return False if Ctrl-C came before the end."""
        try:
            if workers == 1:
                run_trials(self.study, config, self.surface, self.first, advance)
            else:
                inputs = self.inputs
                job = WorkerJob(inputs.source, inputs.device, inputs.dtype, inputs.method, config,
                                self.location, self.fingerprint, self.memory / workers,
                                max(1, torch.get_num_threads() // workers))  # fmt: skip
                run_workers(job, self.halves[0], workers, self.study, advance)
        except KeyboardInterrupt:
            acknowledge()
            return False
        return True

    def judge(self, name: str, schedule: Schedule) -> Judged:
        price = self.surface.price(schedule)
        return Judged(name, schedule, price, self.first(schedule), self.second(schedule))

    def judge_trials(self, trials: Sequence[FinishedTrial]) -> list[Judged]:
        return [self.judge(f"trial {trial.number}", trial.schedule) for trial in trials]

    def judge_unpruned(self) -> Judged:
        return Judged("unpruned", Schedule(), self.surface.unpruned, self.first.unpruned(),
                      self.second.unpruned())  # fmt: skip

    def judge_default(self) -> Judged | None:
        """Judge the method's own form, which needs no search."""
        try:
            schedule = schedule_for(self.inputs.model, gmacs=self.gmacs, method=self.inputs.method)
        except ValueError:  # the form does not reach every budget that the space does
            return None
        return self.judge("method's form", schedule)

    def choose(self, trials: Sequence[FinishedTrial], count: int) -> Choice:
        """Choose by the second half among the best `count` of the first and the default."""
        best = self.judge_trials(choice.pick_finalists(trials, count))
        return choice.choose(self.judge_unpruned(), self.judge_default(), best)

    def judge_front(self, trials: Sequence[FinishedTrial], count: int) -> Comparison:
        rows = self.judge_trials(choice.thin_out(choice.front(trials), count))
        return Comparison(self.judge_unpruned(), None, rows, None)

    def time(self, schedule: Schedule) -> Timed:
        images = take_batch(self.halves[0], self.inputs.batch)
        return time_schedule(restore_(self.inputs.model), schedule, images, rounds=20)

    def rows(self, judged: Sequence[Judged]) -> list[dict[str, object]]:
        """Return rows about the second half: top-1, or without labels the equal predictions.

        Args:
            judged: The unpruned model comes first.
        """
        inputs, unpruned = self.inputs, _with_hits(judged[0].second)
        rows: list[dict[str, object]] = []
        for one in judged:
            outcome = _with_hits(one.second)
            mean, error = Mean.of(outcome.scores)
            change, change_error = choice.paired_gain(outcome, unpruned)
            paper = Plan(one.schedule, self.surface.geometry).gmacs("paper")
            rows.append({
                "table": "search",
                "model": inputs.name,
                "data": Path(inputs.data).name,
                "batch": inputs.batch,
                "precision": inputs.precision,
                "hardware": records.hardware(inputs.device),
                "seed": inputs.seed,
                "images": len(outcome.kl),
                "measure": "top1" if inputs.labeled else "agreement",
                "name": one.name,
                "method": records.method_json(one.schedule),
                "schedule": one.schedule.one_line(),
                "gmacs": round(one.gmacs, 6),
                "gmacs_paper": round(paper, 6),
                "top1": round(mean, 3),
                "top1_error": round(error, 3),
                "change": round(change, 3),
                "change_error": round(change_error, 3),
            })  # fmt: skip
        return rows


def _with_hits(outcome: Outcome) -> Outcome:
    """Return an outcome with labels as it is; without, equal predictions count as hits."""
    return outcome if outcome.hits is not None else replace(outcome, hits=outcome.same)


def prepare_search(
    inputs: SearchInputs,
    budget: Budget | TimeBudget | None,
    location: StudyLocation,
    *,
    workers: int,
    memory: float,
    say: Callable[[str], None],
) -> SearchRun:
    """Prepare a search. Errors in the inputs are raised here, before anything is written."""
    model, method, count = inputs.model, inputs.method, len(inputs.images)
    where = surface_of(backbone(model).geometry, method)
    Plan(where.cheapest(), where.geometry).check()
    gmacs = None
    if isinstance(budget, Budget):
        gmacs = budget.to_gmacs(where.unpruned)
        where.check(gmacs)
    if count < max(2, workers):
        raise ValueError(f"too few images: {count}, for two halves and {workers} workers")
    fingerprint = fingerprint_search(inputs, budget)
    goals = directions(inputs.measure, front=budget is None)
    # A file is made only when all else is ready, but one that exists is checked first of all.
    study = open_study(location, fingerprint, goals) if location.may_exist() else None
    model.to(inputs.device, inputs.dtype)
    halves = _decode(inputs, say)
    measured = None
    if isinstance(budget, TimeBudget):
        cost, timed = cost_for(model, budget, take_batch(halves[0], inputs.batch), method)
        measured = cost * where.unpruned
        say(f"measured at batch {inputs.batch} on {inputs.device}: {measured:.3f} GMACs; {timed}")
    study = study or open_study(location, fingerprint, goals)
    if measured is not None:
        gmacs = _settled_gmacs(study, measured, str(budget))
    return SearchRun(inputs, location, where, fingerprint, halves, study, gmacs, memory)


def _settled_gmacs(study: Study, measured: float, budget: str) -> float:
    """Return the GMACs that a time budget came to when the study began; refuse it if they have
    changed."""
    with reporting_loss():
        gmacs = float(set_once(study, "gmacs", measured))
    if abs(measured / gmacs - 1) > speed.SPREAD / 2:
        raise ValueError(
            f"{budget} was {gmacs:.3f} GMACs when this study began and is {measured:.3f} as "
            "measured now: the machine is another or was busy; wait until it is idle, or give "
            "another --study"
        )
    return gmacs


def take_batch(stack: Stack, batch: int) -> Tensor:
    """Return one batch of images for timing, repeated if there are too few."""
    some = torch.cat(stack.images[:2])
    return some.repeat(-(-batch // len(some)), 1, 1, 1)[:batch]


def _decode(inputs: SearchInputs, say: Callable[[str], None]) -> tuple[Stack, Stack]:
    """Decode all images into memory, in the run's precision, in two halves."""
    decoded = list(batches(inputs.images, inputs.batch, workers=2, strict=inputs.strict,
                           report=lambda message: say(f"left out: {message}")))  # fmt: skip
    if not decoded:
        raise ValueError(f"none of the images in {inputs.data} can be read")
    images = torch.cat([images.to(inputs.dtype) for images, _, _ in decoded])
    labels = torch.cat([labels for _, labels, _ in decoded])
    halves = split_halves(labels.tolist() if inputs.labeled else None, len(images), inputs.seed)
    first, second = (
        Stack([batch.to(inputs.device) for batch in images[half].split(inputs.batch)],
              list(labels[half].split(inputs.batch)) if inputs.labeled else None)
        for half in halves
    )  # fmt: skip
    return first, second


@dataclass(frozen=True)
class WorkerJob:
    """Everything that a worker needs, as it starts as a bare process."""

    model: Mapping[str, Any]  # the arguments of `models.load`
    device: str
    precision: torch.dtype
    method: Method
    config: SearchConfig
    location: StudyLocation
    fingerprint: Mapping[str, str]
    memory: float  # bytes for what blocks get, of each worker
    threads: int  # of each worker, on a CPU


def run_workers(job: WorkerJob, stack: Stack, count: int, study: Study, advance: OnTrials) -> None:
    """Start workers on one study and wait until all have ended.

    The images reach them as a file that they map into memory: it is there once for all of them,
    and unlike shared memory it is not limited to a fraction of it.
    """

    def look() -> int:
        with reporting_loss(), deferred():
            trials = finished(study, job.config)
            advance(trials)
        return len(trials)

    with private_folder() as folder:
        file = folder / "images.pt"
        torch.save(([batch.cpu() for batch in stack.images], stack.labels), file)
        context = multiprocessing.get_context("spawn")
        errors = [folder / f"{number}.error" for number in range(count)]
        workers = [
            context.Process(target=_run_worker, args=(job, file, error), daemon=True)
            for error in errors
        ]

        def raise_errors() -> None:
            for error in errors:
                if error.exists():
                    raise pickle.loads(error.read_bytes())

        try:
            with kept_from_children():
                for worker in workers:
                    worker.start()
            while any(worker.is_alive() for worker in workers):
                look()
                raise_errors()
                time.sleep(0.3)
            total = look()
            raise_errors()
        finally:  # after Ctrl-C some may be alive
            started = [worker for worker in workers if worker.pid is not None]
            for worker in started:
                worker.kill()
            for worker in started:
                worker.join()
    broken = [worker.exitcode for worker in workers if worker.exitcode]
    if broken and total < job.config.trials:
        raise ChildProcessError(
            f"{len(broken)} of {count} workers ended early (exit code {broken[0]}); finished "
            "trials are kept, run the same command again to continue"
        )


def _run_worker(job: WorkerJob, file: Path, error_file: Path) -> None:
    """Run trials on the images in `file`; leave an error for the parent, which ends the search."""
    try:
        _work(job, file)
    except StorageLostError:  # the parent lost it too, and reports the error
        pass
    except Exception as error:
        with replacing(error_file) as temporary:
            temporary.write_bytes(pickle_error(error))


def _work(job: WorkerJob, file: Path) -> None:
    torch.set_num_threads(job.threads)
    images, labels = torch.load(file, mmap=True, weights_only=True)
    stack = Stack([batch.to(job.device) for batch in images], labels)
    model = load(**job.model).to(job.device, job.precision)
    study = open_study(job.location, job.fingerprint, job.config.directions)
    where = surface_of(backbone(model).geometry, job.method)
    objective = Objective(model, job.method, stack, job.memory)
    parent = multiprocessing.parent_process()
    assert parent is not None
    # A parent that was killed cannot stop its workers, so they check.
    run_trials(study, job.config, where, objective, proceed=parent.is_alive)
