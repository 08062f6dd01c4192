"""Options of figures that are drawn from the rows of results.csv, and measure nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.inputs import RESULTS, parser
from zerotprune.plots.figure_files import check_figure_file


def asked(about: str | None, out: Path) -> argparse.Namespace:
    """Where the rows are and where the figure goes, once it is sure that it can be written."""
    options = parser(about)
    options.add_argument("--csv", type=Path, default=RESULTS, help="the rows")
    options.add_argument("--out", type=Path, default=out, help="by the file's ending")
    chosen = options.parse_args()
    check_figure_file(chosen.out)
    return chosen
