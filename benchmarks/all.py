"""Every table of the paper that these models can show, in one run, and docs/results.md from it.

Command: python -m benchmarks.all --shared DIR (minutes on a GPU, hours on a CPU).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import report
from benchmarks.inputs import DOCS, measuring_images, parsed
from benchmarks.search import searched
from benchmarks.tables import dinov2
from benchmarks.tables.table import run


def main() -> None:
    options = measuring_images(__doc__)
    options.add_argument("--docs", type=Path, default=DOCS, help="folder of the report")
    chosen = parsed(options)
    run(report.TABLES, chosen)
    dinov2.run(chosen)
    searched.run(chosen)
    report.write(chosen.csv, chosen.docs)


if __name__ == "__main__":
    main()
