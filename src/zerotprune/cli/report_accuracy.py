"""How `evaluate` and `compare` show what they measured: a table that holds at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.table import Table

from ..budgets.speed import Timed
from ..measure.accuracy import Result
from .console import new_table
from .evaluation import Evaluation


def table_of(evaluation: Evaluation, results: list[Result]) -> Table:
    """One row for each contender, changes against the first. Speed is told as ratios batch by
    batch, with their quartiles: on a busy machine these are wide."""
    measure = evaluation.probe or "top-1"
    table = new_table(f"{evaluation.model_name}, {len(results[0].hits)} images")
    table.add_column("method", overflow="fold")  # what gives way on a narrow screen
    gpu = any(result.peak_memory for result in results)
    timed = evaluation.setting.timed
    columns = ["GMACs", f"{measure} %", "change", "top-5 %"] + ["speed-up (quartiles)"] * timed
    for column in columns + ["MiB"] * gpu:
        width = 14 if column == "change" else max(6, len(column))
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    reference = results[0]
    for number, result in enumerate(results):
        change, error = result.change(reference)
        cells = [
            result.contender.name,
            f"{result.gmacs():.3f}",
            f"{result.top1:.2f}",
            f"{change:+.2f} ± {error:.2f}" if number else "",
            f"{result.top5:.2f}",
        ]
        if timed:
            cells.append(speedup_of(result, reference) if number else "")
        table.add_row(*cells, *([f"{result.peak_memory / 2**20:.0f}"] * gpu))
    return table


def equal_speed_table(
    evaluation: Evaluation,
    results: Sequence[Result],
    asked: Sequence[float],
    timings: Sequence[Timed],
) -> Table:
    """One row for each contender at each speed, with the cost that it came to.

    Args:
        results: the unpruned model's, then one for each contender.
        asked: the speed-up that each contender was set to.
        timings: what was measured of it.
    """
    measure, unpruned = evaluation.probe or "top-1", results[0]
    batch = evaluation.batch
    table = new_table(f"{evaluation.model_name}, {len(unpruned.hits)} images, batch {batch}")
    table.add_column("speed-up", justify="right", no_wrap=True)
    table.add_column("method", overflow="fold")  # what gives way on a narrow screen
    for column in ("measured", "cost", f"{measure} %", "change", "KL"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row("1", unpruned.contender.name, "", "1", f"{unpruned.top1:.2f}", "", "",
                  end_section=True)  # fmt: skip
    rows = list(zip(asked, results[1:], timings, strict=True))
    for number, (speedup, result, timed) in enumerate(rows, start=1):
        table.add_row(
            f"{speedup:g}",
            result.contender.name,
            f"{timed.speedup:.2f}×",
            f"{result.gmacs() / unpruned.gmacs():.3f}",
            f"{result.top1:.2f}",
            "{:+.2f} ± {:.2f}".format(*result.change(unpruned)),
            f"{fmean(result.kl):.4f}" if result.kl else "",
            end_section=number < len(rows) and asked[number] != speedup,
        )
    return table


def speedup_of(result: Result, reference: Result) -> str:
    """With its quartiles, where there are batches enough to have some."""
    low, middle, high = result.speedup(reference)
    batches = len(result.seconds_per_image)
    spread = f"({low:.2f}–{high:.2f})" if batches >= 4 else f"(of {batches})"
    return f"{middle:.2f}× {spread}"
