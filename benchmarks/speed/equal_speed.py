"""All methods at equal measured speed: what do 1.2, 1.5 and 1.8 times the speed cost in accuracy?

Methods meet a budget in GMACs by very different numbers of steps, and a step costs time. So each is
set to a speed here, measured in turn with the unpruned model, and then evaluated: change in top-1,
divergence from the unpruned model, and the cost that it came to. DeiT-Ti and ViT-Ti have one shape,
so that one timing serves both. Timing wants an idle machine and accuracy does not: --only runs one
of the two steps, with a file between them.
Command: python -m benchmarks.speed.equal_speed --shared DIR (two idle cores; four minutes, and ten
a model). What it gave: docs/measuring.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.inputs import MODELS, REPORT, Bench, measuring_images, parsed, say
from zerotprune import Schedule
from zerotprune.budgets.speed import Reached, SpeedDial, TimeBudget, reach
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED, Contender, Result, Setting, compare
from zerotprune.measure.speed import SEED, noise
from zerotprune.methods import DEFAULT, name_of, resolve

METHODS = (DEFAULT, "diffrate", "tome", "zero-tprune")
REST = ("evit", "ats")  # only on the page about measuring
SPEEDUPS = (1.2, 1.5, 1.8)
#: how near to a speed every method is brought, if five attempts suffice
NEAR = 0.02
TABLE = "equal speed"


def measure(speedup: float) -> str:
    """Return the name of what is measured at a speed, as in the rows."""
    return f"top1 at {speedup:g} times the speed"


class Case(NamedTuple):
    """One method at one speed, as in the file; without a schedule if the speed is out of reach."""

    asked: float
    batch: int
    threads: int
    name: str
    speedup: float  # as measured
    latency_ms: float
    schedule: str  # as JSON
    failure: str = ""


def main() -> None:
    known = measuring_images(__doc__)
    add = known.add_argument
    add("--only", choices=["time", "evaluate"], help="one of the two steps, through --found")
    add("--found", type=Path, default=Path("equal-speed.json"), help="the file between the steps")
    add("--threads", type=int, default=2)
    add("--at-a-time", type=int, nargs="+", default=[1, 8], help="images, when it is timed")
    add("--speedups", type=float, nargs="+", default=list(SPEEDUPS))
    add("--methods", nargs="+", default=list(METHODS))
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    chosen = parsed(known)
    if chosen.only != "evaluate":
        find(chosen)
    if chosen.only != "time":
        evaluate(chosen)


def find(chosen: argparse.Namespace) -> None:
    """Set every method to every speed, and write down what was found."""
    if chosen.device == "cpu":
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(SEED)
    model = load(next(iter(MODELS))).to(chosen.device)
    budgets = [TimeBudget(speedup=speedup) for speedup in chosen.speedups]
    cases = []
    for batch in chosen.at_a_time:
        images = noise(model, batch, chosen.device, torch.float32)
        dials = [SpeedDial(model, resolve(name), images) for name in chosen.methods]
        cases += [_noted(reached, batch) for reached in reach(budgets, dials, say, NEAR)]
    for case in cases:
        say(" | ".join(map(str, case[:6])) + f" | {case.failure}")
    chosen.found.write_text(json.dumps([case._asdict() for case in cases], indent=1) + "\n")


def _noted(reached: Reached, batch: int) -> Case:
    assert reached.budget.speedup is not None
    return Case(reached.budget.speedup, batch, torch.get_num_threads(),
                name_of(reached.schedule.method), round(reached.timed.speedup, 4),
                round(1e3 * reached.timed.pruned.median, 4), reached.schedule.to_json(),
                reached.failure)  # fmt: skip


def evaluate(chosen: argparse.Namespace) -> None:
    """Evaluate each schedule once, however often it was found, and write a row for each case."""
    records.check_rows_fit(chosen.csv)
    cases = [Case(**fields) for fields in json.loads(chosen.found.read_text())]
    schedules = {case.schedule: Contender(case.name, Schedule.from_json(case.schedule))
                 for case in cases if not case.failure}  # fmt: skip
    for name in chosen.models:
        bench = Bench(name, chosen)
        batches = bench.batches(REPORT)
        contenders = [UNPRUNED, *schedules.values()]
        say(f"{name}: {len(contenders)} contenders")
        results = compare(bench.model, contenders, batches, setting=Setting(chosen.device))
        by_schedule = dict(zip(schedules, results[1:], strict=True))
        rows = [records.row(results[0], results[0], "float32")]
        rows += [_row(case, by_schedule.get(case.schedule), results[0]) for case in cases]
        about = {"table": TABLE, "model": name, "data": REPORT, "seed": SEED}
        records.append(chosen.csv, [row | about for row in rows])
        for row in rows:
            cells = ("name", "batch", "speedup", "gmacs", "change", "change_error", "kl", "failure")
            say(" | ".join([name, *(str(row.get(cell, "")) for cell in cells)]))


def _row(case: Case, result: Result | None, unpruned: Result) -> dict[str, object]:
    """Return the accuracy beside the speed measured before, or why that is out of reach."""
    timed: dict[str, object] = {
        "measure": measure(case.asked),
        "batch": case.batch,
        "threads": case.threads,
        "mode": "eager",
        "latency_ms": case.latency_ms,
        "speedup": case.speedup,
        "failure": case.failure,
    }
    if result is None:
        return {"name": case.name, "precision": "float32"} | timed
    # Images of the evaluation come in other batches, beside other work: no speed is taken there.
    return records.row(result, unpruned, "float32") | timed | {"images_per_second": ""}


if __name__ == "__main__":
    main()
