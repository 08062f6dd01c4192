"""Tuned schedules: searched on `tune` for single models, shipped in src/zerotprune/tuned.

Each is the winner of many schedules of its budget: ranked by their agreement with the unpruned
model (KL of the outputs) on one half of the images, the best few judged on the other half. One
that is there already gives way only to one that agrees better on all of `tune`.
`schedule_for` gives them for these models; searched.py tests them on `report`.
Command: python benchmarks/tuning.py --shared DIR (a GPU; several searches at a time).
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from zerotprune import Schedule, ZeroTPrune
from zerotprune.backbones import backbone
from zerotprune.budgets import tuned
from zerotprune.data.images import batches, open_data, transform_for
from zerotprune.data.models import load
from zerotprune.search.objective import Objective, Stack

TOLD = ("time", "commit", "versions", "hardware", "seed", "data", "pictures", "measure", "gmacs",
        "top1", "top1_error", "change", "change_error")  # fmt: skip


class Target(NamedTuple):
    """A model, its weights in --shared, and the budgets in GMACs."""

    model: str
    weights: str
    budgets: Sequence[float]
    size: int = 224


TARGETS = (
    Target("deit_tiny_patch16_224", "deit_tiny_patch16_224", (0.9, 0.8, 0.7)),
    Target("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_tiny_patch16_224.augreg",
           (0.9, 0.8, 0.7)),
    Target("vit_small_patch14_dinov2.lvd142m", "vit_small_patch14_dinov2.lvd142m",
           (4.4, 3.9, 3.4)),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--shared", type=Path, default=Path("../shared"), help="weights, images")
    add("--out", type=Path, default=tuned.FOLDER)
    add("--only", nargs="+", default=[each.model for each in TARGETS], help="these models")
    add("--trials", type=int, default=1800)
    add("--sampler", default="tpe", choices=["random", "tpe"])
    add("--seed", type=int, default=0)
    add("--jobs", type=int, default=6, help="searches at a time")
    add("--batch", type=int, default=500)
    add("--precision", default="bfloat16")
    add("--limit", type=int, help="only so many images, to try it out")
    chosen = parser.parse_args()
    chosen.out.mkdir(exist_ok=True)
    wanted = [each for each in TARGETS if each.model in chosen.only]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        searches = [
            (each, [pool.submit(searched, each, gmacs, chosen) for gmacs in each.budgets])
            for each in wanted
        ]
        for target, running in searches:
            done = [each.result() for each in running]
            contest(target, [each for each in done if each is not None], chosen)


def contest(target: Target, candidates: Sequence[tuned.Tuned], chosen: argparse.Namespace) -> None:
    """Write those that agree better with the unpruned model than what is there."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = getattr(torch, chosen.precision)
    model = read(target, chosen).to(device, precision)
    images = open_data(chosen.shared / "imagenet" / "tune", transform=transform_for(model),
                       limit=chosen.limit)  # fmt: skip
    held = batches(
        images, chosen.batch, workers=min(8, os.cpu_count() or 1), strict=True, report=print
    )
    stack = Stack([each.to(device, precision) for each, _, _ in held], None)
    divergence = Objective(model, ZeroTPrune(), stack, memory=8e9)
    for new in candidates:
        path = chosen.out / f"{target.model}-{new.gmacs:g}.json"
        now = divergence(new.schedule).mean_kl
        before = divergence(tuned.read(path).schedule).mean_kl if path.exists() else math.inf
        if now < before:
            tuned.write(path, new)
        print(f"{target.model}, {new.gmacs} G: KL {now:.4f}, before {before:.4f}; "
              f"{new.schedule.one_line()}", flush=True)  # fmt: skip


def asked(chosen: argparse.Namespace) -> list[str]:
    """The options that a schedule depends on."""
    names = ("trials", "sampler", "seed", "batch", "precision", "limit")
    given = {name: getattr(chosen, name) for name in names}
    return [f"--{name} {value}" for name, value in given.items() if value is not None]


def weights(target: Target, chosen: argparse.Namespace) -> Path:
    path: Path = chosen.shared / "weights" / f"{target.weights}.safetensors"
    return path


def read(target: Target, chosen: argparse.Namespace) -> nn.Module:
    return load(target.model, weights=weights(target, chosen), size=target.size)


def searched(target: Target, gmacs: float, chosen: argparse.Namespace) -> tuned.Tuned | None:
    """One search through the command line; where it fails, why."""
    with tempfile.TemporaryDirectory() as folder:
        out, rows = Path(folder, "schedule.json"), Path(folder, "rows.csv")
        options = {"model": target.model, "weights": weights(target, chosen), "size": target.size,
                   "gmacs": gmacs, "data": chosen.shared / "imagenet" / "tune",
                   "trials": chosen.trials, "batch": chosen.batch, "precision": chosen.precision,
                   "sampler": chosen.sampler, "seed": chosen.seed, "out": out,
                   "csv": rows}  # fmt: skip
        if chosen.limit:
            options["limit"] = chosen.limit
        command = [sys.executable, "-m", "zerotprune", "search", "--no-labels"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{target.model}, {gmacs} G: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        with rows.open(newline="", encoding="utf-8") as file:
            (row,) = (row for row in csv.DictReader(file) if row["name"] == "search")
        schedule = Schedule.load(out)
    told = {name: row[name] for name in TOLD if row[name]}
    about = {**told, "command": " ".join(["python benchmarks/tuning.py", *asked(chosen)])}
    model = read(target, chosen)
    return tuned.Tuned(tuned.name_of(model), backbone(model).geometry.tokens, gmacs,
                       repr(ZeroTPrune()), schedule, about)  # fmt: skip


if __name__ == "__main__":
    main()
