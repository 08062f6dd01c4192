"""Searched schedules against solved ones at the same budget, on images they never saw.

The paper's Monte-Carlo search gains 0.1 points (79.4 to 79.5 %, DeiT-S), 0.2 for Zero-TPrune-uni
(78.9 to 79.1 %); its comparisons with other methods do not use it. Ours: the tuned schedules, found
on `tune` by tuning.py, should beat what `schedule_for` makes without them. The search minimized the
KL divergence from the unpruned model; that and accuracy are tested, in pairs, on `report`
(DINOv2-S: accuracy on pets). "early" is the form of `zero-tprune`, with four stages; the search
draws up to six, each with at most a fifth of the patch tokens as similar.
Command: python -m benchmarks.search.searched --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

import argparse

from torch import Tensor, nn

from benchmarks.inputs import DINOV2, MODELS, Bench, measuring_images, parsed, real_model
from benchmarks.tables import dinov2
from benchmarks.tables.table import Claim, Table, about, measure
from zerotprune import ZeroTPrune, schedule_for
from zerotprune.backbones import backbone
from zerotprune.budgets.tuned import tuned_at
from zerotprune.measure.accuracy import Contender


def run(chosen: argparse.Namespace) -> None:
    for name in MODELS:
        classified(Bench(name, chosen))
    on_features(chosen)


def classified(bench: Bench) -> None:
    """Measure a classifier by its accuracy and its divergence."""
    measure(table_of(bench.model), bench)


def on_features(chosen: argparse.Namespace) -> None:
    """Measure DINOv2-S, which has no head."""
    model = real_model(DINOV2, chosen)
    dinov2.measure(table_of(model), model, chosen)


def table_of(model: nn.Module) -> Table:
    """Make a table with both contenders and a claim for each budget that has a schedule."""
    entries = tuned_at(model, ZeroTPrune())
    budgets = sorted((entry.gmacs for entry in entries), reverse=True)
    if not budgets:
        name = backbone(model).name
        raise SystemExit(f"no tuned schedule of {name} is there: run tuning.py first")

    def contenders(model: nn.Module, images: Tensor) -> list[Contender]:
        del images  # no method here whose cost depends on them
        kinds = {
            "paper's form": (ZeroTPrune(form="paper"), False),
            "early form": (ZeroTPrune(), False),
            "searched": (ZeroTPrune(), True),
        }
        return [
            Contender(f"{kind} {gmacs:g} G", schedule_for(model, gmacs=gmacs, method=method,
                                                          tuned=tuned))
            for gmacs in budgets
            for kind, (method, tuned) in kinds.items()
        ]  # fmt: skip

    claims = [
        Claim(f"{first} beats {second} at {budget:g} G", f"{first} {budget:g} G",
              f"{second} {budget:g} G", ours=True)
        for budget in budgets
        for first, second in (("searched", "paper's form"), ("early form", "paper's form"),
                              ("searched", "early form"))
    ]  # fmt: skip
    return Table("searched", about(__doc__), contenders, claims)


if __name__ == "__main__":
    run(parsed(measuring_images(__doc__)))
