"""`zerotprune evaluate`: one model, one method, one budget, on labelled images."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path

from ..data.models import is_model_folder
from ..data.weights import schedule_in
from ..measure import records
from ..measure.accuracy import UNPRUNED, Contender
from ..methods import name_of, resolve
from .evaluation import Evaluation, ProbeOptions, prepare
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
from .report_accuracy import table_of


def evaluate(
    model: ModelName,
    data: DataName,
    *,
    budget: BudgetsOptions | None = None,
    method: MethodName | None = None,
    loading: ModelOptions | None = None,
    reading: ReadingOptions | None = None,
    probing: ProbeOptions | None = None,
    precision: ModelPrecision = "float32",
    calibration: CalibrationFile = None,
    no_speed: NoSpeedFlag = False,
    csv: CsvFile = None,
    json: JsonFlag = False,
) -> None:
    """Accuracy, cost and speed of a pruned model, beside the unpruned one on the same images.

    Several costs are evaluated side by side, on the same batches.

    Example: `zerotprune evaluate deit_small_patch16_224 imagenet/val --cost 0.7 0.5 --method tome`
    """
    budgets, loading = (budget or BudgetsOptions()).each(), loading or ModelOptions()
    reading, probing = reading or ReadingOptions(), probing or ProbeOptions()
    for each in budgets:
        each.check()
    if budgets[0].time is not None:
        refuse_torchrun("a speed is measured in one process")
    if method is not None:
        resolve(method)
        if not budgets[0].given and not is_model_folder(model):
            raise ValueError(f"--method {method} needs a budget: give --cost, or --schedule")
    if csv is not None:
        records.check_rows_fit(csv)
    evaluation = prepare(model, data, loading, reading, probing, precision=precision,
                         calibration=calibration, speed=not no_speed, json=json)  # fmt: skip
    found = [_chosen(evaluation, each, method, loading.weights) for each in budgets]
    results = evaluation.run([UNPRUNED, *(chosen for chosen in found if chosen is not None)])
    if not evaluation.leads:
        return
    rows = [evaluation.row(result, results[0]) for result in results]
    if csv is not None:
        records.append(csv, rows)
    if json:
        print(jsonlib.dumps([{**records.surroundings(), **row} for row in rows], indent=2))
        return
    evaluation.console.print(table_of(evaluation, results))
    if evaluation.unreadable:
        count = len(evaluation.unreadable)
        evaluation.console.print(f"{count} images could not be read", style="red")


def _chosen(
    evaluation: Evaluation, budget: BudgetOptions, method: str | None, weights: Path | None
) -> Contender | None:
    """What is asked for; or, where nothing is, what the weights were trained for."""
    if not budget.given and weights is not None:
        schedule = schedule_in(weights)
    else:
        schedule = budget.solve(
            evaluation.model,
            method,
            lambda: evaluation.some_images(evaluation.batch),
            lambda line: evaluation.console.print(line, highlight=False),
        )
    return None if schedule is None else Contender(name_of(schedule.method), schedule)
