"""What merging owes to its rule, and what to how many tokens go where.

Not in the paper. Methods that merge by `similar` differ in the rule by which tokens are matched and
in their schedule: Fold folds one share at each of a few stages, ToMe merges in every block. Here
each rule runs with the counts of both, at 0.70 and 0.55 of the cost. MCTF as published, before
attention, is cheaper with the same counts: it has Fold's stages, solved for the same cost. Ours:
DeiT-Ti and ViT-Ti; Fold's rule and its schedule were chosen on `tune`, not on these images.
Command: python -m benchmarks.tables.rule_or_counts --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from benchmarks.tables.table import Claim, Table, about, main, within_reach
from zerotprune import Schedule, methods, schedule_for
from zerotprune.measure.accuracy import Contender

COSTS = (0.7, 0.55)
#: rules that merge by `similar` alone, after attention
RULES = ("fold", "tome", "mctf-after")
#: one that merges before it
PUBLISHED = "mctf"
COUNTS = ("fold", "tome")


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    def by(rule: str, counts: str, cost: float) -> Schedule:
        schedule = schedule_for(model, cost=cost, method=counts, images=some)
        return schedule.by(methods.resolve(rule))

    wanted = [
        (label(rule, counts, cost), partial(by, rule, counts, cost))
        for cost in COSTS
        for counts in COUNTS
        for rule in RULES
    ] + [
        (
            label(PUBLISHED, "fold", cost),
            partial(schedule_for, model, cost=cost, method=f"{PUBLISHED}-fold", images=some),
        )
        for cost in COSTS
    ]
    return list(within_reach(wanted))


def label(rule: str, counts: str, cost: float) -> str:
    """
    >>> label("tome", "fold", 0.7)
    "tome, fold's counts at 0.7"
    """
    return f"{rule}, {counts}'s counts at {cost:g}"


CLAIMS = tuple(
    claim
    for cost in COSTS
    for claim in (
        *(Claim(f"with Fold's counts at {cost:g} Fold's rule beats {rule}'s",
                label("fold", "fold", cost), label(rule, "fold", cost), ours=True)
          for rule in (*RULES[1:], PUBLISHED)),
        *(Claim(f"with ToMe's counts at {cost:g} Fold's rule beats {rule}'s",
                label("fold", "tome", cost), label(rule, "tome", cost), ours=True)
          for rule in RULES[1:]),
        *(Claim(f"by the rule of {rule} at {cost:g} Fold's counts beat ToMe's",
                label(rule, "fold", cost), label(rule, "tome", cost), ours=True)
          for rule in RULES),
    )
)  # fmt: skip
TABLE = Table("rule or counts", about(__doc__), contenders, CLAIMS)

if __name__ == "__main__":
    main(__doc__, [TABLE])
