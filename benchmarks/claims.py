"""Read results.csv: the rows of the newest runs, and the verdict on each claim."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from benchmarks.inputs import MODELS

Row = dict[str, str]
Verdict = Literal["agrees", "disagrees", "inconclusive"]


def newest(path: Path) -> list[Row]:
    """Return the rows of each table, model and method that its last run wrote: a run may leave
    methods out. The unpruned rows are from the run that most methods are from."""
    rows = read(path)
    last = {_subject(row): _run(row) for row in rows}
    runs: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for row in reversed(rows):  # of equally many, the last
        if row["method"] and _run(row) == last[_subject(row)]:
            runs.setdefault((row["table"], row["model"]), Counter())[_run(row)] += 1
    last |= {(*where, ""): counts.most_common(1)[0][0] for where, counts in runs.items()}
    kept = [row for row in rows if _run(row) == last[_subject(row)]]
    return list({(row["table"], row["model"], row["name"], row["mode"], row["precision"]): row
                 for row in kept}.values())  # fmt: skip


def read(path: Path) -> list[Row]:
    """Return the rows of all runs, the oldest first."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_by_form(row) for row in csv.DictReader(file) if row["table"]]


def _by_form(row: Row) -> Row:
    """Rename rows that predate our form of schedule: with a stage at block 9, `zero-tprune` was
    what `zero-tprune-paper` is now."""
    name, at, cost = row["name"].partition(" @ ")
    named = {"zero-tprune": "zero-tprune-paper", "zero-tprune-uni": "zero-tprune-uni, paper's form"}
    if at and name in named and '"block": 9,' in row["schedule"]:
        return row | {"name": f"{named[name]} @ {cost}"}
    return row


def _run(row: Row) -> tuple[str, str]:
    return row["command"], row["commit"]


def _subject(row: Row) -> tuple[str, str, str]:
    """Tell what a later run replaces: a method's rows, all claims, or the unpruned model."""
    return row["table"], row["model"], "claims" if is_claim(row) else row["method"]


def is_claim(row: Row) -> bool:
    """Is the row a paired difference of two others?"""
    return " − " in row["measure"]


def models_of(rows: Iterable[Row]) -> list[str]:
    """Return the models of the rows, the two with most tables first."""
    models = dict.fromkeys(row["model"] for row in rows)
    return sorted(models, key=lambda model: [*MODELS, model].index(model))


def errors_from_zero(row: Row, value: str = "change") -> float:
    """Return the difference in standard errors."""
    error = float(row[f"{value}_error"] or 0)
    return float(row[value]) / error if error else 0.0


def verdict(row: Row, value: str = "change") -> Verdict:
    """Judge by accuracy (`change`) or by divergence from the unpruned model (`kl`)."""
    z = errors_from_zero(row, value)
    return "agrees" if z > 2 else "disagrees" if z < -2 else "inconclusive"


def signed(row: Row, value: str = "change", digits: int = 2) -> str:
    """Format a difference with its standard error."""
    return f"{float(row[value]):+.{digits}f} ± {float(row[f'{value}_error']):.{digits}f}"
