"""DINOv2-S (LayerScale, no head) off the shelf, by 10 nearest neighbours on Oxford pets at 224 px.

No table of the paper: it shows the methods on a self-supervised model that they were not made for.
Features of the training pictures are pruned in the same way as those of the test pictures.
Command: python benchmarks/dinov2.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import off_the_shelf
import torch
from table import Table, options, spread, write
from torch import nn

from zerotprune.budgets.contenders import Contender
from zerotprune.data.images import batches, open_data, transform_for
from zerotprune.data.models import load
from zerotprune.measure.accuracy import Batch, Setting, compare
from zerotprune.measure.probe import score

NAME = "vit_small_patch14_dinov2.lvd142m"
TABLE = Table("dinov2", off_the_shelf.contenders, off_the_shelf.CLAIMS, (NAME,))


def main() -> None:
    measure(lambda model: TABLE, options(__doc__))


def measure(table_of: Callable[[nn.Module], Table], chosen: argparse.Namespace) -> None:
    """Run a table on this model and these pictures."""
    model = load(NAME, weights=chosen.shared / "weights" / f"{NAME}.safetensors", size=224)
    model = model.to(chosen.device)
    table = table_of(model)
    train, test = (_decoded(model, split, chosen) for split in ("train", "test"))
    some = spread(test, 64).to(chosen.device)
    contenders = [Contender("unpruned"), *table.contenders(model, some)]
    setting = Setting(chosen.device, keep_outputs=True)
    learned = compare(model, contenders, train, setting=setting)
    results = compare(model, contenders, test, setting=setting)
    for before, result in zip(learned, results, strict=True):
        score("knn", before, result, _labels(train), _labels(test))
    about = {"model": NAME, "data": "pets/test", "batch": chosen.batch, "measure": "knn"}
    write(table, results, about, chosen.csv)


def _decoded(model: nn.Module, split: str, chosen: argparse.Namespace) -> list[Batch]:
    pictures = open_data(
        chosen.shared / "pets" / split, transform=transform_for(model), limit=chosen.limit
    )
    return list(batches(pictures, chosen.batch, workers=2, strict=True, report=print))


def _labels(held: list[Batch]) -> torch.Tensor:
    return torch.cat([labels for _, labels, _ in held])


if __name__ == "__main__":
    main()
