"""Figures that are drawn from the rows of results.csv: their options, and their rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.claims import Row, newest
from benchmarks.inputs import RESULTS, parser
from zerotprune.plots.figures import check_figure_file


def asked(about: str | None, out: Path) -> argparse.Namespace:
    """Parse where the rows are and where the figure goes, and check that it can be written."""
    options = parser(about)
    options.add_argument("--csv", type=Path, default=RESULTS, help="the rows")
    options.add_argument("--out", type=Path, default=out, help="by the file's ending")
    chosen = options.parse_args()
    check_figure_file(chosen.out)
    return chosen


def rows_of(table: str, path: Path) -> list[Row]:
    """Return the rows of the newest run; fail without any."""
    rows = [row for row in newest(path) if row["table"] == table]
    if not rows:
        raise SystemExit(f"{path} has no rows of {table!r}")
    return rows
