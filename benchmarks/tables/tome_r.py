"""ToMe at its own settings, r = 9, 10 and 13 in every block: a check of our implementation.

An independent prototype, on 4,000 other and more strongly compressed ImageNet images, had -2.28 ±
0.40 (DeiT-Ti) and -3.35 ± 0.41 (ViT-Ti) at r = 13, and -1.20 ± 0.34 and -2.05 ± 0.34 at r = 10.
Command: python -m benchmarks.tables.tome_r --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.tables.table import ALL_IMAGES, Table, about, main
from zerotprune import Schedule, Stage
from zerotprune.measure.accuracy import Contender
from zerotprune.methods import ToMe


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    return [Contender(f"r = {r}", merging(r)) for r in (9, 10, 13)]


def merging(r: int) -> Schedule:
    return Schedule(tuple(Stage(block, similar=r) for block in range(1, 13)), ToMe())


TABLE = Table("tome-r", about(__doc__), contenders, data=ALL_IMAGES)

if __name__ == "__main__":
    main(__doc__, [TABLE])
