"""Searched schedules against the paper's form at the same budget, on images they never saw.

The paper's Monte-Carlo search gains 0.1 points (79.4 to 79.5 %, DeiT-S), 0.2 for Zero-TPrune-uni
(78.9 to 79.1 %); its comparisons with other methods do without. Ours: tuned schedules, found on
`tune` by tuning.py, should beat what `schedule_for` makes without them.
They were chosen by the KL divergence of the outputs from the unpruned model's. Both that, in
hundredths of a nat, and accuracy are tested, in pairs, on `report` (DINOv2-S: accuracy on pets).
Command: python -m benchmarks.search.searched --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.inputs import DINOV2, MODELS, REPORT, measuring_images, parsed, real_model, reported
from benchmarks.tables import dinov2
from benchmarks.tables.table import Claim, Table, about, write
from zerotprune import ZeroTPrune, schedule_for
from zerotprune.backbones import backbone
from zerotprune.budgets.tuned import tuned_at
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED, Contender, Result, Setting, compare
from zerotprune.measure.statistics import Mean, divergence


def run(chosen: argparse.Namespace) -> None:
    for name in MODELS:
        classified(name, chosen)
    model = real_model(DINOV2, chosen)
    dinov2.measure(table_of(model), model, chosen)


def classified(name: str, chosen: argparse.Namespace) -> None:
    """A model that names classes: by its answers, and by how far they moved."""
    model, held = reported(name, chosen)
    table = table_of(model)
    contenders = [UNPRUNED, *table.contenders(model, held[0][0])]
    setting = Setting(chosen.device, keep_outputs=True)
    results = compare(model, contenders, held, setting=setting)
    about_run = {"model": name, "data": REPORT, "batch": chosen.batch, "precision": "float32"}
    write(table, results, about_run, chosen.csv)
    rows = divergences(results, table.claims)
    records.append(chosen.csv, [{**about_run, "table": table.name, **row} for row in rows])
    for row in rows:
        print(row["name"], row["change"], row["change_error"], sep=" | ", flush=True)


def divergences(results: Sequence[Result], claims: Sequence[Claim]) -> list[dict[str, object]]:
    """Rows for the same claims by KL (unpruned ‖ pruned): how much less the first one's is."""
    unpruned, *others = (torch.cat(result.outputs).log_softmax(dim=-1) for result in results)
    names = [result.contender.name for result in results[1:]]
    found = {
        name: divergence(unpruned, outputs) for name, outputs in zip(names, others, strict=True)
    }
    rows: list[dict[str, object]] = []
    for claim in claims:
        less = found[claim.second] - found[claim.first]
        change, error = Mean.of(less, scale=100)
        rows.append({
            "name": f"{claim.text}, by KL", "measure": f"KL of {claim.second} − {claim.first}",
            "change": round(change, 3), "change_error": round(error, 3), "images": len(less),
            "seed": 0,
        })  # fmt: skip
    return rows


def table_of(model: nn.Module) -> Table:
    """A contender of either kind, and a claim, for each budget that there is a schedule for."""
    found = tuned_at(model, ZeroTPrune())
    budgets = sorted((each.gmacs for each in found), reverse=True)
    if not budgets:
        name = backbone(model).name
        raise SystemExit(f"no tuned schedule of {name} is there: run tuning.py first")

    def contenders(model: nn.Module, images: Tensor) -> list[Contender]:
        del images  # no method here whose cost depends on them
        return [
            Contender(f"{kind} {gmacs:g} G", schedule_for(model, gmacs=gmacs, tuned=tuned))
            for gmacs in budgets
            for kind, tuned in (("paper's form", False), ("searched", True))
        ]

    claims = [
        Claim(f"search gains at {each:g} G", f"searched {each:g} G", f"paper's form {each:g} G")
        for each in budgets
    ]
    return Table("searched", about(__doc__), contenders, claims)


if __name__ == "__main__":
    run(parsed(measuring_images(__doc__)))
