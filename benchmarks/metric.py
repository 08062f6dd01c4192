"""Which metric the S-stage should use: cosine, dot product, or Minkowski distance.

The paper (DeiT-S) finds cosine best and most others close. Ours: DeiT-Ti and ViT-Ti, schedule
ablation-is. Command: python benchmarks/metric.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from typing import get_args

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import Schedule, ZeroTPrune
from zerotprune.budgets.contenders import Contender
from zerotprune.scoring.similarity import Metric

NAMES = get_args(Metric)


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    schedule = Schedule.preset("ablation-is")
    return [Contender(name, schedule, ZeroTPrune(metric=name)) for name in NAMES]


CLAIMS = tuple(Claim(f"cosine is at least as good as {name}", "cosine", name) for name in NAMES[1:])
TABLE = Table("metric", contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
