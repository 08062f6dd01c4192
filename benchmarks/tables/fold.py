"""Fold beside ToMe and DiffRate at low budgets.

Not in the paper: Fold is ours. DeiT-Ti and ViT-Ti at 0.80, 0.65 and 0.55 GMACs of needed compute
(every method runs the last block for CLS alone), of 1.254: change in top-1, and the KL divergence
of the outputs from the unpruned model's, which is less noisy on 2,000 images. DiffRate's counts
were learned with labels on all of ImageNet; Fold learned nothing. They are published down to 0.657
G for DeiT-T: the rows at 0.55 are our extrapolation and no result of DiffRate. DiffRate merges by
plain means; means weighted by size, which is not as published, bring it nearer.
Command: python -m benchmarks.tables.fold --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.tables.table import Claim, Table, about, main, solved
from zerotprune import Method, Schedule, gmacs, methods, schedule_for
from zerotprune.measure.accuracy import Contender

NEEDED = (0.80, 0.65, 0.55)
METHODS: dict[str, Method] = {
    "fold": methods.Fold(),
    "tome": methods.ToMe(),
    "diffrate": methods.DiffRate(),
    "diffrate, weighted means": methods.DiffRate(weighted=True),
}


def needing(model: nn.Module, target: float, method: Method) -> Schedule:
    """Return the method's schedule that needs `target` GMACs."""

    def turn(at: float) -> tuple[Schedule, float] | None:
        try:
            schedule = schedule_for(model, cost=1 - 0.7 * at, method=method)
        except ValueError:  # less than the method can reach
            return None
        return schedule, gmacs(model, schedule, compute="needed")

    return solved(turn, target)


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    return [
        Contender(f"{name}, {target:g} G needed", needing(model, target, method))
        for target in NEEDED
        for name, method in METHODS.items()
    ]


CLAIMS = tuple(
    Claim(f"Fold beats {name} at {target:g} G needed", f"fold, {target:g} G needed",
          f"{name}, {target:g} G needed", ours=True)
    for target in NEEDED
    for name in list(METHODS)[1:]
)  # fmt: skip
TABLE = Table("fold", about(__doc__), contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
