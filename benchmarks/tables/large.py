"""The paper's larger models at its costs, given their weights and ImageNet.

Tables 2, 3 and 14: DeiT-S and -B, AugReg ViT-S, LV-ViT-S and -M, MAE and SWAG. A model without a
file in --weights is left out, and its column stays quoted. SWAG's and MAE's costs are those of 384
px; MAE's head pools the patch tokens. Zero-TP is `zero-tprune-paper`, "early" is our form. The
abstract's "49 % less loss" is LV-ViT-S, Zero-TP against ToMe.
Command: python -m benchmarks.tables.large --weights DIR --data IMAGENET/val (a GPU); with
--only lvvit:lvvit_s that model alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from torch import Tensor, nn

from benchmarks.inputs import measuring_images, parsed, say, spread
from benchmarks.tables.printed import TABLE_3, TABLE_14, Cell, Printed, Quoted
from benchmarks.tables.published import TABLE as TABLE_2
from benchmarks.tables.published import entered
from benchmarks.tables.table import Claim, Table, about, write
from zerotprune import Method, ZeroTPrune, gmacs, methods
from zerotprune.backbones import backbone
from zerotprune.cost import Convention
from zerotprune.data.images import batches, open_data
from zerotprune.data.models import load
from zerotprune.measure.accuracy import UNPRUNED, Contender, Setting, compare

METHODS: dict[str, Method] = {
    "ATS": methods.ATS(),
    "ToMe": methods.ToMe(),
    "Zero-TP": ZeroTPrune(form="paper"),
    "Zero-TP, early": ZeroTPrune(),
    "Fold": methods.Fold(),
}


@dataclass(frozen=True)
class Large:
    """A model of the paper: its name on the command line, its weights file, its table."""

    model: str
    file: str
    table: Table
    size: int | None = None
    pool: str | None = None


def beside(quoted: Quoted, column: str, more: Sequence[Claim] = ()) -> Table:
    """Make a table for one column of a quoted table, each method at its share of the cost there.
    The paper claims that the best of the column is the best."""
    at = quoted.header.index(column)
    cells = {row[0]: Cell(float(row[at]), float(row[at + 1])) for row in quoted.rows}
    unpruned = cells.pop("unpruned")

    def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
        def saved(name: str) -> float:
            return 100 * (1 - cells.get(name, cells["Zero-TP"]).gflops / unpruned.gflops)

        def off(counted: Convention) -> float:
            return abs(gmacs(model, convention=counted) - unpruned.gflops)

        rows = ((name, saved(name), method) for name, method in METHODS.items())
        # The paper counts some models with their patch embedding, some without.
        return entered(model, rows, some, min(get_args(Convention), key=off))

    title = quoted.title.partition(":")[0]
    printed = Printed(title, quoted.conditions, cells, unpruned)
    best = max(cells, key=lambda name: cells[name].top1)
    claims = [Claim(f"{best} beats {other}", best, other) for other in cells if other != best]
    return Table(f"{title}, {column}", about(__doc__), contenders, [*claims, *more], models=(),
                 printed=printed)  # fmt: skip


def even(model: nn.Module, some: Tensor) -> list[Contender]:
    """Return the methods for DeiT-B at 13.6 G of 17.6; the paper prints no accuracy for it."""
    share = 100 * (1 - 13.6 / 17.6)
    return entered(model, ((name, share, method) for name, method in METHODS.items()), some)


#: the abstract's: 1.8 points lost instead of 3.5
LESS_LOSS = Claim("Zero-TP loses 49 % less than ToMe", "Zero-TP", "ToMe", less=1 - 1.8 / 3.5)

MODELS = (
    Large("deit_small_patch16_224", "deit_small_patch16_224.safetensors", TABLE_2),
    Large("deit_base_patch16_224", "deit_base_patch16_224.safetensors",
          Table("DeiT-B at 13.6 G", about(__doc__), even, models=())),
    Large("vit_small_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch16_224.augreg.safetensors",
          beside(TABLE_3, "AugReg")),
    Large("lvvit:lvvit_s", "lvvit_s.pth", beside(TABLE_3, "LV-ViT-S", [LESS_LOSS])),
    Large("lvvit:lvvit_m", "lvvit_m.pth", beside(TABLE_14, "LV-ViT-M")),
    Large("vit_base_patch16_224.mae", "mae_finetuned_vit_base.pth", beside(TABLE_3, "MAE"),
          pool="avg"),
    Large("vit_base_patch16_224.mae", "mae_finetuned_vit_base.pth", beside(TABLE_14, "MAE"),
          pool="avg"),
    Large("torchvision:vit_b_16", "vit_b_16_swag.pth", beside(TABLE_3, "SWAG"), size=384),
    Large("torchvision:vit_b_16", "vit_b_16_swag.pth", beside(TABLE_14, "SWAG"), size=384),
)  # fmt: skip


def add_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--weights", type=Path, help="folder with the larger models' weights")
    to.add_argument("--data", type=Path, help="ImageNet's validation images")


def run(chosen: argparse.Namespace) -> None:
    if chosen.weights is None or chosen.data is None:
        say("large: without --weights and --data the paper's tables stay quoted")
        return
    wanted = getattr(chosen, "only_models", None)
    for entry in MODELS:
        if wanted and entry.model not in wanted:
            continue
        if (chosen.weights / entry.file).is_file():
            measure(entry, chosen)
        else:
            say(f"{entry.table.name}: no {entry.file} in {chosen.weights}, so it stays quoted")


def measure(entry: Large, chosen: argparse.Namespace) -> None:
    """Measure one model, reading images as it goes: there may be 50,000."""
    weights = chosen.weights / entry.file
    model = load(entry.model, weights=weights, size=entry.size, pool=entry.pool).to(chosen.device)
    images = open_data(chosen.data, transform=backbone(model).transform(), limit=chosen.limit)
    some = open_data(chosen.data, transform=images.transform, limit=min(64, len(images)))
    few = spread(list(batches(some, 64, report=say)), 64).to(chosen.device)
    contenders = [UNPRUNED, *entry.table.contenders(model, few)]
    workers = min(16, os.cpu_count() or 1)
    loaded = batches(images, chosen.batch, workers=workers, report=say)
    results = compare(model, contenders, loaded, setting=Setting(chosen.device))
    about_run = {"model": entry.model, "data": chosen.data.name, "batch": chosen.batch}
    write(entry.table, results, about_run, chosen.csv)


def main() -> None:
    options = measuring_images(__doc__)
    add_options(options)
    names = list(dict.fromkeys(entry.model for entry in MODELS))
    options.add_argument("--only", nargs="+", choices=names, dest="only_models")
    run(parsed(options))


if __name__ == "__main__":
    main()
