"""`zerotprune evaluate`: one model, one method, one budget, on labeled images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..data.models import saved_with
from ..data.weights import schedule_in
from ..measure import records
from ..measure.accuracy import UNPRUNED, Contender
from ..methods import name_of
from .console import print_json, print_table
from .evaluation import Evaluation, ProbeOptions, accuracy_table, prepare_evaluation
from .options import (
    BudgetOptions,
    BudgetsOptions,
    CalibrationFile,
    CsvFile,
    DataName,
    JsonFlag,
    MethodName,
    ModelName,
    ModelOptions,
    ModelPrecision,
    NoSpeedFlag,
    ReadingOptions,
    refuse_torchrun,
)


def evaluate(
    model: ModelName,
    data: DataName,
    *,
    budget: BudgetsOptions = BudgetsOptions(),
    method: MethodName | None = None,
    loading: ModelOptions = ModelOptions(),
    reading: ReadingOptions = ReadingOptions(),
    probing: ProbeOptions = ProbeOptions(),
    precision: ModelPrecision = "float32",
    calibration: CalibrationFile = None,
    no_speed: NoSpeedFlag = False,
    csv: CsvFile = None,
    json: JsonFlag = False,
) -> None:
    """Measure accuracy, cost and speed of a pruned model beside the unpruned one.

    Several costs are evaluated side by side, on the same batches.

    Example: `zerotprune evaluate deit_small_patch16_224 imagenet/val --cost 0.7 0.5 --method tome`
    """
    budgets = budget.split(method, model)
    if budgets[0].time is not None:
        refuse_torchrun("a speed is measured in one process")
    evaluation = prepare_evaluation(
        model, data, loading, reading, probing, precision=precision, calibration=calibration,
        speed=not no_speed, json=json,
    )  # fmt: skip
    saved = None if budgets[0].options else saved_with(evaluation.model, method)
    if saved is not None:
        evaluation.setting = replace(evaluation.setting, outputs=saved.outputs)
    pruned = [_contender(evaluation, one, method, loading.weights) for one in budgets]
    results = evaluation.run([UNPRUNED, *(one for one in pruned if one is not None)])
    if not evaluation.leads:
        return
    rows = [evaluation.row(result, results[0]) for result in results]
    if csv is not None:
        records.append(csv, rows)
    if json:
        print_json(rows)
        return
    print_table(evaluation.console, accuracy_table(evaluation, results))
    if count := len(evaluation.dataset) - len(results[0].index):
        images = f"{count} image{'s' * (count > 1)}"
        evaluation.console.print(f"{images} could not be read", style="red")


def _contender(
    evaluation: Evaluation, budget: BudgetOptions, method: str | None, weights: Path | None
) -> Contender | None:
    """Return the model at the budget; without one, at the schedule that its weights are for."""
    if not budget.options and weights is not None:
        schedule = schedule_in(weights)
    else:
        schedule = budget.solve(
            evaluation.model,
            method,
            lambda: evaluation.some_images(evaluation.batch),
            evaluation.console.print,
        )
    return None if schedule is None else Contender(name_of(schedule.method), schedule)
