"""All methods off the shelf, at matched budgets: the comparison that counts.

The paper (DeiT-S at 2.5 to 4 G) has Zero-TPrune ahead of ATS, ToMe and EViT without training.
Ours: DeiT-Ti and ViT-Ti at 0.85, 0.70 and 0.55 of the unpruned cost, each method set to the budget
by its own knob, scoring included.
Command: python -m benchmarks.tables.off_the_shelf --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.tables.table import Claim, Table, about, main
from zerotprune import ZeroTPrune, methods, schedule_for
from zerotprune.measure.accuracy import Contender

COSTS = (0.85, 0.7, 0.55)


def contenders(model: nn.Module, some: Tensor, without: str = "") -> list[Contender]:
    """All methods but one, if need be."""
    return [
        Contender(f"{name} @ {cost:g}", schedule_for(model, cost=cost, method=name, images=some))
        for cost in COSTS
        for name in methods.names()
        if name != without
    ]


def claims(without: str = "") -> tuple[Claim, ...]:
    return tuple(
        Claim(f"Zero-TPrune beats {name} at {cost:g}", f"zero-tprune @ {cost:g}",
              f"{name} @ {cost:g}")
        for cost in COSTS
        for name in methods.names()
        if name != without and not isinstance(methods.resolve(name), ZeroTPrune)
    )  # fmt: skip


TABLE = Table("off-the-shelf", about(__doc__), contenders, claims())

if __name__ == "__main__":
    main(__doc__, [TABLE])
