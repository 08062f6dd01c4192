"""Pruning instead of scaling down: one model pruned mildly and aggressively.

The paper prunes a model to the cost of the next smaller one and asks which is more accurate. Of
ImageNet models we have only tiny ones, so this shows the curve: ViT-Ti from mild to aggressive.
Command: python -m benchmarks.tables.scaling --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.tables.table import Table, about, main
from zerotprune import schedule_for
from zerotprune.measure.accuracy import Contender

COSTS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
MODEL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    return [Contender(f"keep {cost:g}", schedule_for(model, cost=cost)) for cost in COSTS]


TABLE = Table("scaling", about(__doc__), contenders, models=(MODEL,))

if __name__ == "__main__":
    main(__doc__, [TABLE])
