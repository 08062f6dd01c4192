"""Searched schedules against the paper's form at the same budget, on images they never saw.

The paper searches its schedules by Monte-Carlo simulation and does not say what that gains. Ours:
tuned schedules, found on `tune` by tuning.py, should beat what `schedule_for` makes without them.
They were chosen by the KL divergence of the outputs from the unpruned model's. Both that, in
hundredths of a nat, and accuracy are tested, in pairs, on `report` (DINOv2-S: accuracy on pets).
Command: python benchmarks/searched.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import dinov2
import torch
from table import MODELS, Claim, Table, decoded, options, write
from torch import Tensor, nn
from zerotprune.budgets.contenders import Contender

from zerotprune import ZeroTPrune, schedule_for
from zerotprune.backbones import backbone
from zerotprune.budgets.tuned import name_of, tuned_at
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure.accuracy import Result, Setting, compare, paired_difference
from zerotprune.search.objective import divergence


def main() -> None:
    chosen = options(__doc__)
    for name in MODELS:
        classified(name, chosen)
    dinov2.measure(table_of, chosen)


def classified(name: str, chosen: argparse.Namespace) -> None:
    """A model that names classes: by its answers, and by how far they moved."""
    model = load(name, weights=chosen.shared / "weights" / MODELS[name]).to(chosen.device)
    table = table_of(model)
    held = decoded(model, chosen.shared, chosen.batch, chosen.limit)
    contenders = [Contender("unpruned"), *table.contenders(model, held[0][0])]
    setting = Setting(chosen.device, keep_outputs=True)
    results = compare(model, contenders, held, setting=setting)
    about = {"model": name, "data": "imagenet/report", "batch": chosen.batch}
    write(table, results, about, chosen.csv)
    rows = divergences(results, table.claims)
    records.append(chosen.csv, [{**about, "table": table.name, **row} for row in rows])
    for row in rows:
        print(row["name"], row["change"], row["change_error"], sep=" | ", flush=True)


def divergences(results: Sequence[Result], claims: Sequence[Claim]) -> list[dict[str, object]]:
    """Rows for the same claims by KL (unpruned ‖ pruned): how much less the first one's is."""
    unpruned = torch.cat(results[0].outputs).log_softmax(dim=-1)

    divergence_of = {
        result.contender.name: divergence(unpruned, torch.cat(result.outputs).log_softmax(dim=-1))
        for result in results[1:]
    }
    rows: list[dict[str, object]] = []
    for claim in claims:
        less = divergence_of[claim.second] - divergence_of[claim.first]
        change, error = paired_difference(less.tolist())
        rows.append({
            "name": f"{claim.text}, by KL", "measure": f"KL of {claim.second} − {claim.first}",
            "change": round(change, 3), "change_error": round(error, 3), "pictures": len(less),
            "seed": 0, "precision": "float32",
        })  # fmt: skip
    return rows


def table_of(model: nn.Module) -> Table:
    """A contender of either kind, and a claim, for each budget that there is a schedule for."""
    schedules = tuned_at(model, backbone(model).geometry.tokens, repr(ZeroTPrune()))
    budgets = sorted((each.gmacs for each in schedules), reverse=True)
    if not budgets:
        raise SystemExit(f"no tuned schedule of {name_of(model)} is there: run tuning.py first")

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
    return Table("searched", contenders, claims)


if __name__ == "__main__":
    main()
