"""How the S-stage should part the tokens: sequential-U, sequential-I, alternate, random, none.

The paper (DeiT-S) finds sequential-U best: the less important half is pruned for being like the
more important one. Ours: DeiT-Ti and ViT-Ti, schedule ablation-is.
Command: python benchmarks/partition.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import Schedule, ZeroTPrune
from zerotprune.budgets.contenders import Contender

OTHERS = ("sequential-i", "alternate", "random", "none")


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    schedule = Schedule.preset("ablation-is")
    names = ("sequential-u", *OTHERS)
    return [
        Contender(name, schedule, ZeroTPrune(partition=name))  # type: ignore[arg-type]
        for name in names
    ]


CLAIMS = tuple(Claim(f"sequential-U beats {name}", "sequential-u", name) for name in OTHERS)
TABLE = Table("partition", contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
