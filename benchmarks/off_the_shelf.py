"""All methods off the shelf, at matched budgets: the comparison that counts.

The paper (DeiT-S at 2.5 to 4 G) has Zero-TPrune ahead of ATS, ToMe and EViT without training.
Ours: DeiT-Ti and ViT-Ti at 0.85, 0.70 and 0.55 of the unpruned cost, each method set to the budget
by its own knob, scoring included. Command: python benchmarks/off_the_shelf.py --shared DIR. What
it gave: docs/results.md.
"""

from __future__ import annotations

from dataclasses import replace

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import gmacs
from zerotprune.budgets.contenders import METHODS, Contender, contender

SHARES = (0.85, 0.7, 0.55)
RIVALS = ("ats", "tome", "tome-uni", "evit", "diffrate", "cls-attention", "random")


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    full = gmacs(model)
    found = []
    for share in SHARES:
        for name in METHODS:
            made = contender(name, model, share * full, some)
            found.append(replace(made, name=f"{name} @ {share:g}"))
    return found


CLAIMS = tuple(
    Claim(
        f"Zero-TPrune beats {name} at {share:g}", f"zero-tprune @ {share:g}", f"{name} @ {share:g}"
    )
    for share in SHARES
    for name in RIVALS
)
TABLE = Table("off-the-shelf", contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
