"""ATS, ToMe and Zero-TPrune at the shares of the cost in the paper's Table 2 (DeiT-S).

The paper gives a, b and c by their cost alone, so the schedules are ours, solved for the same share
of the cost: in the form of `zero-tprune-paper`, and in ours, "early". Costs are counted as in the
paper, without patch embedding. Ours: DeiT-Ti and ViT-Ti; `python -m benchmarks.speed.throughput`
measures the speed with DeiT-S.
Command: python -m benchmarks.tables.published --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn

from benchmarks.tables.printed import TABLE_2
from benchmarks.tables.table import Claim, Table, about, main, within_reach
from zerotprune import Method, Schedule, ZeroTPrune, gmacs, methods, schedule_for
from zerotprune.cost import Convention
from zerotprune.measure.accuracy import Contender

#: less of the cost in percent, by the names that the paper has for them
SAVED: dict[str, float] = {"ATS": 33.4, "ToMe": 35.2, "Zero-TP-a": 34.7, "Zero-TP-b": 45.1,
                           "Zero-TP-c": 12.7}  # fmt: skip
PAPER = ZeroTPrune(form="paper")
METHODS: dict[str, Method] = {"ATS": methods.ATS(), "ToMe": methods.ToMe()}


def at_share(
    model: nn.Module, saved: float, method: Method, some: Tensor, counted: Convention
) -> Schedule:
    """Solve for `saved` percent less than the unpruned cost."""
    target = (1 - saved / 100) * gmacs(model, convention=counted)
    return schedule_for(model, gmacs=target, method=method, images=some, convention=counted)


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    rows: list[tuple[str, float, Method]] = []
    for name, saved in SAVED.items():
        rows.append((name, saved, METHODS.get(name, PAPER)))
        if name not in METHODS:
            rows.append((f"{name}, early", saved, ZeroTPrune()))
    rows.append(("Fold", SAVED["Zero-TP-a"], methods.Fold()))
    return entered(model, rows, some)


def entered(
    model: nn.Module,
    rows: Iterable[tuple[str, float, Method]],
    some: Tensor,
    counted: Convention = "paper",
) -> list[Contender]:
    """Solve rows of name, percent saved and method. On noise ATS may miss the budget: it is then
    left out."""
    return list(within_reach(
        (name, partial(at_share, model, saved, method, some, counted))
        for name, saved, method in rows
    ))  # fmt: skip


TABLE = Table(
    "Table 2's shares",
    about(__doc__),
    contenders,
    (
        Claim("Zero-TP-a beats ATS", "Zero-TP-a", "ATS"),
        Claim("Zero-TP-a beats ToMe", "Zero-TP-a", "ToMe"),
        Claim("Zero-TP-a loses a third less than ATS", "Zero-TP-a", "ATS", less=1 / 3),
        Claim("Zero-TP-b beats ToMe, at less cost", "Zero-TP-b", "ToMe"),
        Claim("Zero-TP-a beats ATS, early form", "Zero-TP-a, early", "ATS", ours=True),
        Claim("Zero-TP-a beats ToMe, early form", "Zero-TP-a, early", "ToMe", ours=True),
    ),
    printed=TABLE_2,
)

if __name__ == "__main__":
    main(__doc__, [TABLE])
