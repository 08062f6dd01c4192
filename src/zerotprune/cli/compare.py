"""`zerotprune compare`: all methods at several budgets, on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import torch
from matplotlib.figure import Figure

from ..budgets import Budget
from ..budgets.speed import Reached, SpeedDial, TimeBudget, Timed, reach
from ..measure import records
from ..measure.accuracy import UNPRUNED, Contender, Result
from ..method import Method
from ..methods import DEFAULT, name_of, names, resolve
from ..plots.comparison import Point, find_named, trade_off_figure
from ..plots.figures import check_figure_file, save
from .console import left_out
from .evaluation import (
    Evaluation,
    ProbeOptions,
    accuracy_table,
    contenders_at,
    equal_speed_table,
    prepare_evaluation,
)
from .options import (
    CalibrationFile,
    Cost,
    CsvFile,
    DataName,
    FigureFolder,
    MethodNames,
    ModelName,
    ModelOptions,
    ModelPrecision,
    ReadingOptions,
    Several,
    Speedup,
    refuse_torchrun,
)

Axis = Literal["gmacs", "speed"]
COSTS = (0.85, 0.7, 0.55)
RIVAL = "tome"


@dataclass(frozen=True)
class Entry:
    """One method at one budget."""

    asked: float  # the cost, or the speed-up
    contender: Contender
    timed: Timed | None = None  # where the budget is a speed-up


def compare(
    model: ModelName,
    data: DataName,
    *,
    cost: Several[Cost] = None,
    speedup: Several[Speedup] = None,
    method: MethodNames = None,
    loading: ModelOptions = ModelOptions(),
    reading: ReadingOptions = ReadingOptions(),
    probing: ProbeOptions = ProbeOptions(),
    precision: ModelPrecision = "float32",
    calibration: CalibrationFile = None,
    csv: CsvFile = None,
    plots: FigureFolder = None,
) -> None:
    """Compare all methods at several budgets: a table, a CSV, and two plots.

    Costs are matched within 1 %; speeds are measured here at --batch, in turn, within 5 %.

    Example: `zerotprune compare deit_small_patch16_224 imagenet/val --speedup 1.2 1.5 --plots .`

    Parameters
    ----------
    cost
        Budgets, as shares of the unpruned compute; default 0.85, 0.7 and 0.55.
    speedup
        Budgets, as times the unpruned model's speed, measured on this machine.
    plots
        Folder for `accuracy-gmacs.png` and `accuracy-speed.png`.
    """
    if cost and speedup:
        raise ValueError("give one kind of budget, not several: --cost and --speedup")
    budgets = [Budget(cost=share) for share in cost or COSTS]
    speeds = [TimeBudget(speedup=times) for times in dict.fromkeys(speedup or ())]
    methods = [resolve(name) for name in method or names()]
    if speeds:
        refuse_torchrun("a speed is measured in one process")
    if plots is not None:
        check_figure_file(plots / "accuracy-gmacs.png")
    evaluation = prepare_evaluation(model, data, loading, reading, probing, precision=precision,
                                    calibration=calibration)  # fmt: skip
    missed: list[Reached] = []
    if speeds:
        entries, missed = _at_speeds(evaluation, speeds, methods)
    else:
        entries = _at_costs(evaluation, budgets, methods)
    if not entries:
        raise ValueError("none of the methods can meet any of the budgets")
    results = evaluation.run([UNPRUNED, *(entry.contender for entry in entries)])
    _report(evaluation, entries, results, missed, csv, plots)


def _at_costs(
    evaluation: Evaluation, budgets: Sequence[Budget], methods: Sequence[Method]
) -> list[Entry]:
    """Return every method at every cost that it can be set to."""
    model, images, console = evaluation.model, cache(evaluation.some_images), evaluation.console
    return [
        Entry(budget.cost, contender)
        for budget in budgets
        if budget.cost is not None
        for contender in contenders_at(budget.cost, methods, model, images, console)
    ]


def _at_speeds(
    evaluation: Evaluation, speeds: Sequence[TimeBudget], methods: Sequence[Method]
) -> tuple[list[Entry], list[Reached]]:
    """Return every method at every speed that it reaches, and the speeds that were missed."""
    images, report = evaluation.some_images(evaluation.batch), left_out(evaluation.console)
    dials, entries, missed = list[SpeedDial](), list[Entry](), list[Reached]()
    for method in methods:
        try:
            dials.append(SpeedDial(evaluation.model, method, images))
        except ValueError as error:
            report(str(error))
    if not dials:
        return [], []
    with evaluation.console.status("measuring") as status:
        outcomes = reach(speeds, dials, status.update)
    for reached in outcomes:
        if reached.failure:
            missed.append(reached)
            report(reached.failure)
        else:
            contender = Contender(name_of(reached.schedule.method), reached.schedule)
            entries.append(Entry(reached.budget.speedup or 0.0, contender, reached.timed))
    return entries, missed


def _report(
    evaluation: Evaluation,
    entries: list[Entry],
    results: list[Result],
    missed: list[Reached],
    csv: Path | None,
    plots: Path | None,
) -> None:
    if not evaluation.leads:
        return
    timings = [entry.timed for entry in entries if entry.timed is not None]
    if timings:
        asked = [entry.asked for entry in entries]
        evaluation.console.print(equal_speed_table(evaluation, results, asked, timings))
    else:
        evaluation.console.print(accuracy_table(evaluation, results))
    for line in _against_rival(entries, results):
        evaluation.console.print(line, highlight=False)
    if csv is not None:
        records.append(csv, _rows(evaluation, entries, results, missed))
    if plots is not None:
        # The same methods have names in all plots: those that stand out by their cost.
        named = find_named(_points(entries, results, "gmacs"), "gmacs")
        for by in get_args(Axis):
            figure = _plot(entries, results, by, evaluation.model_name, named)
            save(figure, plots / f"accuracy-{by}.png")


def _rows(
    evaluation: Evaluation, entries: list[Entry], results: list[Result], missed: list[Reached]
) -> list[dict[str, object]]:
    """Return the rows of the CSV; those of speeds that were not reached have a reason."""
    unpruned = results[0]
    rows = [evaluation.row(unpruned, unpruned)]
    for entry, result in zip(entries, results[1:], strict=True):
        timed = {} if entry.timed is None else _timed_row(entry.timed)
        rows.append(evaluation.row(result, unpruned) | timed)
    for reached in missed:
        about = records.about(Contender(name_of(reached.schedule.method), reached.schedule))
        where = {key: rows[0][key] for key in ("model", "data", "measure", "batch", "precision")}
        rows.append(where | about | _timed_row(reached.timed) | {"failure": reached.failure})
    return rows


def _timed_row(timed: Timed) -> dict[str, object]:
    threads = "" if torch.cuda.is_available() else torch.get_num_threads()
    return {"mode": "eager", "threads": threads, "latency_ms": round(timed.pruned, 4),
            "speedup": round(timed.speedup, 4)}  # fmt: skip


def _plot(
    entries: list[Entry], results: list[Result], by: Axis, model: str, named: list[str]
) -> Figure:
    title = f"{model}, {len(results[0].hits)} images"
    unpruned = results[0].gmacs() if by == "gmacs" else 1.0
    return trade_off_figure(_points(entries, results, by), unpruned, by, title, named)


def _points(entries: list[Entry], results: list[Result], by: Axis) -> list[Point]:
    """Return the pruned models; a speed is that of the budget, or else of the evaluation."""
    points = []
    for entry, result in zip(entries, results[1:], strict=True):
        if by == "gmacs":
            x = result.gmacs()
        else:
            x = entry.timed.speedup if entry.timed else result.speedup(results[0])[1]
        points.append(Point(entry.contender.name, x, *result.change(results[0])))
    return points


def _against_rival(entries: list[Entry], results: list[Result]) -> list[str]:
    """Compare the default method with ToMe at each budget, in a paired test."""
    pairs = {(entry.asked, entry.contender.name): (entry, result)
             for entry, result in zip(entries, results[1:], strict=True)}  # fmt: skip
    lines = []
    for asked in dict.fromkeys(entry.asked for entry in entries):
        if (asked, DEFAULT) not in pairs or (asked, RIVAL) not in pairs:
            continue
        (ours, result), (theirs, other) = pairs[asked, DEFAULT], pairs[asked, RIVAL]
        mean, error = result.change(other)
        z = mean / error if error else 0.0
        at = f"{result.gmacs():.3f} and {other.gmacs():.3f} GMACs"
        if ours.timed is not None and theirs.timed is not None:
            at = f"{ours.timed.speedup:.2f}× and {theirs.timed.speedup:.2f}×"
        lines.append(
            f"{DEFAULT} − {RIVAL} at {at}: {mean:+.2f} ± {error:.2f} points (z = {z:+.1f})"
        )
    return lines
