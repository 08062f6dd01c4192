"""DINOv2-S (LayerScale, no head) off the shelf, by 10 nearest neighbors on Oxford pets at 224 px.

Not in the paper: a self-supervised model that the methods were not made for. Features of training
and test images are pruned in the same way.
Command: python -m benchmarks.tables.dinov2 --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from benchmarks.inputs import DINOV2, decoded, measuring_images, parsed, real_model, spread
from benchmarks.tables import off_the_shelf
from benchmarks.tables.table import Table, about, write
from zerotprune import methods
from zerotprune.measure.accuracy import UNPRUNED, Setting, compare
from zerotprune.measure.evaluation import apply_probe
from zerotprune.shapes import Batch

_AMONG = [name for name in methods.names() if name != "diffrate"]  # whose counts are for others
TABLE = off_the_shelf.table("dinov2", about(__doc__), _AMONG, (DINOV2,))


def run(chosen: argparse.Namespace) -> None:
    measure(TABLE, real_model(DINOV2, chosen), chosen)


def measure(table: Table, model: nn.Module, chosen: argparse.Namespace) -> None:
    """Measure a table on DINOv2-S and these images."""
    model = model.to(chosen.device)
    train, test = (
        decoded(model, chosen.shared / "pets" / split, chosen.batch, chosen.limit)
        for split in ("train", "test")
    )
    contenders = [UNPRUNED, *table.contenders(model, spread(test, 64).to(chosen.device))]
    setting = Setting(chosen.device, keep_outputs=True)
    learned = compare(model, contenders, train, setting=setting)
    results = compare(model, contenders, test, setting=setting)
    for before, result in zip(learned, results, strict=True):
        apply_probe("knn", before, result, _labels(train), _labels(test))
    about_run = {"model": DINOV2, "data": "pets/test", "batch": chosen.batch, "measure": "knn"}
    write(table, results, about_run, chosen.csv)


def _labels(batches: list[Batch]) -> torch.Tensor:
    return torch.cat([labels for _, labels, _ in batches])


if __name__ == "__main__":
    run(parsed(measuring_images(__doc__)))
