"""Ranking by WPR against ranking by plain attention: CLS, average, accumulated average.

The paper (DeiT-S) has WPR beat all attention-based rankings. Ours: DeiT-Ti and ViT-Ti, schedule
ablation-i (no S-stage). Command: python benchmarks/attention.py --shared DIR. What it gave:
docs/results.md.
"""

from __future__ import annotations

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import Schedule, ZeroTPrune
from zerotprune.budgets.contenders import Contender

OTHERS = ("cls", "average", "accumulated", "random")


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    schedule = Schedule.preset("ablation-i")
    found = [Contender("WPR", schedule, ZeroTPrune())]
    for name in OTHERS:
        found.append(Contender(name, schedule, ZeroTPrune(ranking=name)))  # type: ignore[arg-type]
    return found


CLAIMS = tuple(Claim(f"WPR beats {name} attention", "WPR", name) for name in OTHERS[:3])
TABLE = Table("attention", contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
