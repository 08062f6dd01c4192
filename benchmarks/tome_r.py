"""ToMe at its own settings, r = 9, 10 and 13 in every block: a check of our implementation.

An independent prototype on 4,000 other, more strongly compressed ImageNet pictures had -2.28 ± 0.40
(DeiT-Ti) and -3.35 ± 0.41 (ViT-Ti) at r = 13, and -1.20 ± 0.34 and -2.05 ± 0.34 at r = 10.
Command: python benchmarks/tome_r.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from table import Table, main
from torch import Tensor, nn

from zerotprune import Schedule, Stage
from zerotprune.budgets.contenders import Contender
from zerotprune.methods import ToMe


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    return [
        Contender(
            f"r = {r}", Schedule(tuple(Stage(block, 1.0, r) for block in range(1, 13))), ToMe()
        )
        for r in (9, 10, 13)
    ]


TABLE = Table("tome-r", contenders)

if __name__ == "__main__":
    main(__doc__, [TABLE])
