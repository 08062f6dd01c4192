"""Every table of the paper that these models can show, in one run, and docs/results.md from it.

Command: python benchmarks/all.py --shared DIR (minutes on a GPU, hours on a CPU).
"""

from __future__ import annotations

import attention
import contribution
import dinov2
import features
import metric
import off_the_shelf
import order
import partition
import report
import scaling
import searched
import tome_r
from table import main

MODULES = (contribution, features, partition, metric, order, attention, off_the_shelf, tome_r,
           scaling)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, [module.TABLE for module in MODULES])
    dinov2.main()
    searched.main()
    report.main()
