"""Searched schedules against the paper's form at the same budget, on pictures they never saw.

The paper searches its schedules by Monte-Carlo simulation and does not say what that gains. Ours:
tuned schedules, found on `tune`, should beat what `schedule_for` makes without them, by a paired
test on `report`. Not run yet: tuning.py comes first.
Command: python benchmarks/searched.py --shared DIR
"""

from __future__ import annotations

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import schedule_for
from zerotprune.budgets import Contender

BUDGETS = (0.9, 0.8, 0.7)


def contenders(model: nn.Module, images: Tensor) -> list[Contender]:
    found = []
    for budget in BUDGETS:
        form, searched = (schedule_for(model, gmacs=budget, tuned=tuned) for tuned in (False, True))
        if searched == form:
            raise SystemExit(f"no tuned schedule of {budget:g} G is there: run tuning.py first")
        found += [Contender(f"paper's form {budget:g} G", form),
                  Contender(f"searched {budget:g} G", searched)]  # fmt: skip
    return found


CLAIMS = [
    Claim(f"search gains at {budget:g} G", f"searched {budget:g} G", f"paper's form {budget:g} G")
    for budget in BUDGETS
]

TABLE = Table("searched", contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
