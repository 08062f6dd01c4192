"""Pruning instead of scaling down: one model pruned mildly and aggressively.

The paper prunes a model to the cost of the next smaller one and asks which is more accurate. Of
ImageNet models we have only tiny ones, so this shows the curve: ViT-Ti from mild to aggressive.
Command: python benchmarks/scaling.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from table import Table, main
from torch import Tensor, nn
from zerotprune.budgets.contenders import Contender

from zerotprune import schedule_for

SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    return [
        Contender(f"keep {share:g}", schedule_for(model, cost=share, tuned=False))
        for share in SHARES
    ]


TABLE = Table("scaling", contenders, models=("vit_tiny_patch16_224.augreg_in21k_ft_in1k",))

if __name__ == "__main__":
    main(__doc__, [TABLE])
