"""Rows of results.csv read again: those of the newest run, and what became of each claim."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from benchmarks.inputs import MODELS

Row = dict[str, str]
Verdict = Literal["agrees", "disagrees", "does not tell"]


def newest(path: Path) -> list[Row]:
    """Of each table and model, the rows of its last run alone."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [_by_form(row) for row in csv.DictReader(file) if row["table"]]
    last = {(row["table"], row["model"]): _run(row) for row in rows}
    kept = [row for row in rows if _run(row) == last[row["table"], row["model"]]]
    return list({(row["table"], row["model"], row["name"], row["mode"], row["precision"]): row
                 for row in kept}.values())  # fmt: skip


def _by_form(row: Row) -> Row:
    """Zero-TPrune had the paper's form of schedule, with a stage in block 9, before it had one of
    its own."""
    name, at, cost = row["name"].partition(" @ ")
    named = {"zero-tprune": "zero-tprune-paper", "zero-tprune-uni": "zero-tprune-uni, paper's form"}
    if at and name in named and '"block": 9,' in row["schedule"]:
        return row | {"name": f"{named[name]} @ {cost}"}
    return row


def _run(row: Row) -> tuple[str, str]:
    return row["command"], row["commit"]


def is_claim(row: Row) -> bool:
    return " − " in row["measure"]


def models_of(rows: Iterable[Row]) -> list[str]:
    """Those that have most of the tables come first, whichever ran first."""
    found = dict.fromkeys(row["model"] for row in rows)
    return sorted(found, key=lambda model: [*MODELS, model].index(model))


def errors_from_zero(row: Row, value: str = "change") -> float:
    """By how many standard errors the difference is above zero."""
    error = float(row[f"{value}_error"] or 0)
    return float(row[value]) / error if error else 0.0


def verdict(row: Row, value: str = "change") -> Verdict:
    """`change` is that of accuracy, `kl` that of the divergence from the unpruned model."""
    z = errors_from_zero(row, value)
    return "agrees" if z > 2 else "disagrees" if z < -2 else "does not tell"


def signed(row: Row, value: str = "change", digits: int = 2) -> str:
    """A difference with its error."""
    return f"{float(row[value]):+.{digits}f} ± {float(row[f'{value}_error']):.{digits}f}"
