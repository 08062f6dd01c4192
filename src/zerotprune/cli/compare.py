"""`zerotprune compare`: all methods at several budgets, on the same images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from matplotlib.figure import Figure

from ..budgets import Budget, schedule_for
from ..measure import records
from ..measure.accuracy import UNPRUNED, Contender, Result
from ..methods import DEFAULT, name_of, names, resolve
from ..plots.comparison import Point, find_named, trade_off_figure
from ..plots.figures import check_figure_file, save
from .evaluation import Evaluation, ProbeOptions, prepare
from .options import (
    CalibrationFile,
    CsvFile,
    DataName,
    MethodNames,
    ModelName,
    ModelOptions,
    ModelPrecision,
    ReadingOptions,
    Several,
)
from .report_accuracy import table_of

Axis = Literal["gmacs", "speed"]
RIVAL = "tome"


def compare(
    model: ModelName,
    data: DataName,
    *,
    cost: Several[float] = None,
    method: MethodNames = None,
    loading: ModelOptions | None = None,
    reading: ReadingOptions | None = None,
    probing: ProbeOptions | None = None,
    precision: ModelPrecision = "float32",
    calibration: CalibrationFile = None,
    csv: CsvFile = None,
    plots: Path | None = None,
) -> None:
    """All methods at several budgets, matched within 1 %: a table, a CSV, and two plots.

    Example: `zerotprune compare deit_small_patch16_224 imagenet/val --cost 0.7 0.5 --plots .`

    Parameters
    ----------
    cost
        Budgets, as shares of the unpruned compute; default 0.85, 0.7 and 0.55.
    plots
        Folder for `accuracy-gmacs.png` and `accuracy-speed.png`.
    """
    budgets = [Budget(cost=share) for share in cost or (0.85, 0.7, 0.55)]
    methods = [resolve(name) for name in method or names()]
    if csv is not None:
        records.check_rows_fit(csv)
    if plots is not None:
        check_figure_file(plots / "accuracy-gmacs.png")
    evaluation = prepare(model, data, loading or ModelOptions(), reading or ReadingOptions(),
                         probing or ProbeOptions(), precision=precision,
                         calibration=calibration)  # fmt: skip
    contenders = [UNPRUNED]
    for budget in budgets:
        for each in methods:
            images = evaluation.some_images() if each.adaptive else None
            try:
                schedule = schedule_for(
                    evaluation.model, cost=budget.cost, method=each, images=images
                )
                contenders.append(Contender(name_of(each), schedule))
            except ValueError as error:
                evaluation.console.print(f"left out: {error}", style="yellow", markup=False)
    if len(contenders) == 1:
        raise ValueError("none of the methods can meet any of the budgets")
    _report(evaluation, evaluation.run(contenders), csv, plots)


def _report(
    evaluation: Evaluation, results: list[Result], csv: Path | None, plots: Path | None
) -> None:
    if not evaluation.leads:
        return
    evaluation.console.print(table_of(evaluation, results))
    for line in _against_rival(results):
        evaluation.console.print(line, highlight=False)
    if csv is not None:
        records.append(csv, [evaluation.row(result, results[0]) for result in results])
    if plots is not None:
        # The same methods have names in all plots: those that stand out by their cost.
        named = find_named(_points(results, "gmacs")[1:], "gmacs")
        for by in get_args(Axis):
            figure = _plot(results, by, evaluation.model_name, named)
            save(figure, plots / f"accuracy-{by}.png")


def _plot(results: list[Result], by: Axis, model: str, named: list[str]) -> Figure:
    unpruned, *points = _points(results, by)
    title = f"{model}, {len(results[0].hits)} images"
    return trade_off_figure(points, unpruned.x, by, title, named)


def _points(results: list[Result], by: Axis) -> list[Point]:
    return [
        Point(
            result.contender.name,
            result.gmacs() if by == "gmacs" else result.images_per_second,
            *result.change(results[0]),
        )
        for result in results
    ]


def _against_rival(results: list[Result]) -> list[str]:
    """A paired test of the default method against ToMe at each budget."""
    by_name = {DEFAULT: list[Result](), RIVAL: list[Result]()}
    for result in results:
        by_name.get(result.contender.name, []).append(result)
    lines = []
    for ours, theirs in zip(by_name[DEFAULT], by_name[RIVAL], strict=False):
        mean, error = ours.change(theirs)
        z = mean / error if error else 0.0
        lines.append(
            f"{DEFAULT} − {RIVAL} at {ours.gmacs():.3f} and {theirs.gmacs():.3f} GMACs: "
            f"{mean:+.2f} ± {error:.2f} points (z = {z:+.1f})"
        )
    return lines
