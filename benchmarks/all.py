"""Every table of the paper that these models can show, in one run, and docs/results.md from it.

Parts: tables, dinov2, searched, settings, throughput; and large, the paper's tables of DeiT-S and
-B, LV-ViT, MAE and SWAG, for whoever has their weights (--weights) and ImageNet (--data). A part
that fails is told at the end, and the others go on.
Command: python -m benchmarks.all --shared DIR --jobs 8 (a GPU; on a CPU it takes hours, and
--limit 20 --settings 5 --trials 5 --speed-batch 2 --rounds 1 tries it out).
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.inputs import (
    DINOV2,
    DOCS,
    MODELS,
    REPORT,
    TUNE,
    Bench,
    measuring_images,
    parsed,
    say,
)
from benchmarks.search import searched, settings
from benchmarks.speed import throughput
from benchmarks.tables import dinov2, large
from benchmarks.tables.listing import TABLES
from benchmarks.tables.table import measure

PARTS = ("tables", "searched", "settings", "dinov2", "large", "throughput")


def main() -> None:
    options = measuring_images(__doc__)
    add = options.add_argument
    add("--docs", type=Path, default=DOCS, help="folder of the report")
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts")
    add("--skip", nargs="+", choices=PARTS, default=(), help="all parts but these")
    names = [table.name for table in TABLES]
    add("--tables", nargs="+", choices=names, default=names, help="of the part `tables`")
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="of ImageNet")
    add("--timed", action="store_true", help="images/s of the tables for which the paper has them")
    settings.add_options(options)
    throughput.add_options(options)
    large.add_options(options)
    if torch.cuda.is_available():
        options.set_defaults(batch=500)
    chosen = parsed(options)
    parts = [part for part in chosen.only if part not in chosen.skip]
    benches = []
    if set(parts) & {"tables", "searched", "settings"}:
        benches = [bench for name in chosen.models for bench in ready(name, chosen)]
    for bench in benches:
        on_model(bench, parts)
    if "dinov2" in parts:
        with timed(f"dinov2, {DINOV2}"):
            dinov2.run(chosen)
            searched.on_features(chosen)
    if "large" in parts:
        with timed("large"):
            large.run(chosen)
    if "throughput" in parts:
        with timed("throughput"):
            throughput.Throughput(chosen).measure()
    with timed("report"):
        from benchmarks import report  # which wants more than a GPU machine may have

        report.write(chosen.csv, chosen.docs)
    if FAILED:
        raise SystemExit(f"failed: {'; '.join(FAILED)}")


def ready(name: str, chosen: argparse.Namespace) -> list[Bench]:
    """Load a bench and decode its images in processes, which cannot be forked once CUDA is up.
    Return an empty list if weights or images are missing."""
    benches = []
    with timed(f"decoding, {name}"):
        bench = Bench(name, chosen)
        bench.batches(TUNE, REPORT)
        benches.append(bench)
    return benches


def on_model(bench: Bench, parts: list[str]) -> None:
    """Run all tables and figures of one ImageNet model."""
    if "tables" in parts:
        for table in TABLES:
            if bench.name in table.models and table.name in bench.chosen.tables:
                with timed(f"{table.name}, {bench.name}"):
                    measure(table, bench)
    if "searched" in parts:
        with timed(f"searched, {bench.name}"):
            searched.classified(bench)
    if "settings" in parts:
        with timed(f"settings, {bench.name}"):
            settings.run(bench)


FAILED: list[str] = []


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Time a part; note one that fails and go on, since a GPU may be lent by the minute."""
    started = time.perf_counter()
    try:
        yield
    except Exception:
        traceback.print_exc()
        FAILED.append(name)
    say(f"== {name}: {time.perf_counter() - started:.0f} s{' FAILED' * (name in FAILED)}")


if __name__ == "__main__":
    main()
