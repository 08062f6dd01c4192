"""`zerotprune compare`: all methods at several budgets, on the same images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from matplotlib.figure import Figure

from ..budgets.speed import Reached
from ..measure import records
from ..measure.accuracy import UNPRUNED, Result
from ..measure.contenders import Entry, at_costs, at_speeds, comparison_rows
from ..methods import DEFAULT, names, resolve
from ..plots.comparison import Point, find_named, trade_off_figure
from ..plots.figures import check_figure_file, save
from .console import left_out, print_table, showing
from .evaluation import (
    Evaluation,
    ProbeOptions,
    accuracy_table,
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
    methods = [resolve(name) for name in dict.fromkeys(method or names())]
    if speedup:
        refuse_torchrun("a speed is measured in one process")
    if plots is not None:
        for by in get_args(Axis):
            check_figure_file(_plot_file(plots, by))
    evaluation = prepare_evaluation(model, data, loading, reading, probing, precision=precision,
                                    calibration=calibration)  # fmt: skip
    pruned, report = evaluation.model, left_out(evaluation.console)
    missed: list[Reached] = []
    if speedup:
        images = evaluation.some_images(evaluation.batch)
        with showing(evaluation.console, "measuring") as show:
            entries, missed = at_speeds(pruned, speedup, methods, images, report, show)
    else:
        entries = at_costs(pruned, cost or COSTS, methods, evaluation.some_images, report)
    results = evaluation.run([UNPRUNED, *(entry.contender for entry in entries)])
    if evaluation.leads:
        _print_comparison(evaluation, entries, results)
        if csv is not None:
            records.append(csv, comparison_rows(evaluation, entries, results, missed))
        if plots is not None:
            _draw_trade_offs(evaluation, entries, results, plots)


def _print_comparison(evaluation: Evaluation, entries: list[Entry], results: list[Result]) -> None:
    timings = [entry.timed for entry in entries if entry.timed is not None]
    if timings:
        targets = [entry.target for entry in entries]
        print_table(evaluation.console, equal_speed_table(evaluation, results, targets, timings))
    else:
        print_table(evaluation.console, accuracy_table(evaluation, results))
    for line in _against_rival(entries, results):
        evaluation.console.print(line)


def _draw_trade_offs(
    evaluation: Evaluation, entries: list[Entry], results: list[Result], plots: Path
) -> None:
    # The same methods have names in all plots: those that stand out by their cost.
    named = find_named(_points(entries, results, "gmacs"), "gmacs")
    for by in get_args(Axis):
        figure = _trade_off(entries, results, by, evaluation.model_name, named)
        save(figure, _plot_file(plots, by))


def _plot_file(plots: Path, by: Axis) -> Path:
    return plots / f"accuracy-{by}.png"


def _trade_off(
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
    pairs = {(entry.target, entry.contender.name): (entry, result)
             for entry, result in zip(entries, results[1:], strict=True)}  # fmt: skip
    lines = []
    for target in dict.fromkeys(entry.target for entry in entries):
        if (target, DEFAULT) not in pairs or (target, RIVAL) not in pairs:
            continue
        (ours, result), (theirs, other) = pairs[target, DEFAULT], pairs[target, RIVAL]
        mean, error = result.change(other)
        z = mean / error if error else 0.0
        at = f"{result.gmacs():.3f} and {other.gmacs():.3f} GMACs"
        if ours.timed is not None and theirs.timed is not None:
            at = f"{ours.timed.speedup:.2f}× and {theirs.timed.speedup:.2f}×"
        lines.append(
            f"{DEFAULT} − {RIVAL} at {at}: {mean:+.2f} ± {error:.2f} points (z = {z:+.1f})"
        )
    return lines
