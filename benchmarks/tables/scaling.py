"""How far a model can be pruned: Fold and Zero-TPrune from mild to aggressive.

The paper compares LV-ViT-M pruned by ToMe (81.6 % at 6.3 G) with LV-ViT-S pruned by Zero-TPrune
(81.5 % at 3.5 G) and advises a smaller model instead of pruning a large one by half. We have only
tiny ImageNet models, so this shows where their curves fall off.
Command: python -m benchmarks.tables.scaling --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.tables.table import Table, about, main
from zerotprune import schedule_for
from zerotprune.measure.accuracy import Contender

COSTS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    return [
        Contender(f"{name} @ {cost:g}", schedule_for(model, cost=cost, method=name))
        for name in ("fold", "zero-tprune", "zero-tprune-paper")
        for cost in COSTS
    ]


TABLE = Table("curve", about(__doc__), contenders)

if __name__ == "__main__":
    main(__doc__, [TABLE])
