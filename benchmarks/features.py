"""Which features the S-stage should compare: key, query, value, X_pre or X.

The paper (DeiT-S) finds the keys best, by little. Ours: DeiT-Ti and ViT-Ti, schedule ablation-is.
Command: python benchmarks/features.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from typing import get_args

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import Schedule, ZeroTPrune
from zerotprune.budgets.contenders import Contender
from zerotprune.methods.zero_tprune import Feature

NAMES = get_args(Feature)


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    schedule = Schedule.preset("ablation-is")
    return [Contender(name, schedule, ZeroTPrune(features=name)) for name in NAMES]


CLAIMS = tuple(Claim(f"key is at least as good as {name}", "key", name) for name in NAMES[1:])
TABLE = Table("features", contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
