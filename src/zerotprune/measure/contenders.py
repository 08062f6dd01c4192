"""Set methods to equal budgets: the same costs, or the same measured speeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from ..budgets import schedule_for
from ..budgets.speed import Reached, SpeedDial, TimeBudget, Timed, reach
from ..method import Method
from ..methods import name_of
from ..schedule import Schedule
from . import records
from .accuracy import Contender, Result
from .evaluation import Evaluator

Say = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """One method at one budget."""

    target: float  # the cost, or the speedup
    contender: Contender
    timed: Timed | None = None  # if the budget is a speedup


def at_costs(
    model: nn.Module,
    costs: Iterable[float],
    methods: Sequence[Method],
    images: Callable[[], Tensor],
    report: Say,
) -> list[Entry]:
    """Return every method at every cost that it can be set to.

    Args:
        model: The model to prune.
        costs: As shares of the unpruned model's compute.
        methods: The methods.
        images: Returns a batch, for methods whose cost depends on the images.
        report: Called with the reason why a method is left out.
    """
    sample, entries = cache(images), list[Entry]()
    for cost in dict.fromkeys(costs):
        for method in methods:
            some = sample() if method.adaptive else None
            try:
                schedule = schedule_for(model, cost=cost, method=method, images=some)
            except ValueError as error:
                report(str(error))
            else:
                entries.append(Entry(cost, _contender(schedule)))
    return _some(entries)


def at_speeds(
    model: nn.Module,
    speedups: Iterable[float],
    methods: Sequence[Method],
    images: Tensor,
    report: Say,
    say: Say = lambda line: None,
) -> tuple[list[Entry], list[Reached]]:
    """Return every method at every speed that it reaches, and the speeds that were missed.

    Args:
        model: The model to prune.
        speedups: As times the unpruned model's speed.
        methods: The methods.
        images: The batch to measure the speeds on.
        report: Called with the reason why a method is left out.
        say: Called with messages about the progress.
    """
    dials, entries, missed = list[SpeedDial](), list[Entry](), list[Reached]()
    for method in methods:
        try:
            dials.append(SpeedDial(model, method, images))
        except ValueError as error:
            report(str(error))
    budgets = [TimeBudget(speedup=times) for times in dict.fromkeys(speedups)]
    for reached in reach(budgets, dials, say) if dials else []:
        if reached.failure:
            missed.append(reached)
            report(reached.failure)
        else:
            target = reached.budget.speedup or 0.0
            entries.append(Entry(target, _contender(reached.schedule), reached.timed))
    return _some(entries), missed


def _contender(schedule: Schedule) -> Contender:
    return Contender(name_of(schedule.method), schedule)


def _some(entries: list[Entry]) -> list[Entry]:
    if not entries:
        raise ValueError("none of the methods can meet any of the budgets")
    return entries


def comparison_rows(
    evaluator: Evaluator,
    entries: Sequence[Entry],
    results: Sequence[Result],
    missed: Sequence[Reached] = (),
) -> list[dict[str, object]]:
    """Return the rows of the CSV; those of speeds that were not reached have a reason.

    Args:
        evaluator: What measured the results.
        entries: The methods at their budgets.
        results: The unpruned model's, then one for each entry.
        missed: Speeds that were not reached.
    """
    unpruned, device = results[0], evaluator.setting.device
    rows = [evaluator.row(unpruned, unpruned)]
    for entry, result in zip(entries, results[1:], strict=True):
        timed = {} if entry.timed is None else _timed_row(entry.timed, device)
        rows.append(evaluator.row(result, unpruned) | timed)
    for reached in missed:
        about = records.about(_contender(reached.schedule))
        shared = ("model", "data", "measure", "batch", "precision", "hardware")
        timed = _timed_row(reached.timed, device) | {"failure": reached.failure}
        rows.append({key: rows[0][key] for key in shared} | about | timed)
    return rows


def _timed_row(timed: Timed, device: str) -> dict[str, object]:
    threads = "" if device.startswith("cuda") else torch.get_num_threads()
    return {"mode": "eager", "threads": threads, "latency_ms": round(1e3 * timed.pruned.median, 4),
            "speedup": round(timed.speedup, 4)}  # fmt: skip
