"""Tuned schedules: searched on `tune` for single models, shipped in src/zerotprune/budgets/tuned.

Each is the winner of many schedules of its budget: ranked by their agreement with the unpruned
model (KL of the outputs) on one half of the images, the best few judged on the other half. One
that is there already gives way only to one that agrees better on all of `tune`.
`schedule_for` gives them with tuned=True; searched.py tests them on `report`.
Command: python -m benchmarks.search.tuning --shared DIR (a GPU; several searches at a time).
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.inputs import (
    DINOV2,
    MODELS,
    SIZE,
    TUNE,
    add_shared,
    decoded,
    parser,
    real_model,
    weights_of,
)
from zerotprune import Schedule, ZeroTPrune
from zerotprune.backbones import backbone
from zerotprune.budgets import tuned
from zerotprune.search.objective import Objective, Stack

#: columns that a schedule's file keeps of the search that found it
PROVENANCE = ("time", "commit", "versions", "hardware", "seed", "data", "images", "measure",
              "gmacs", "top1", "top1_error", "change", "change_error")  # fmt: skip
#: each model's budgets in GMACs
BUDGETS = {**dict.fromkeys(MODELS, (0.9, 0.8, 0.7)), DINOV2: (4.4, 3.9, 3.4)}


def main() -> None:
    options = parser(__doc__)
    add_shared(options)
    add = options.add_argument
    add("--out", type=Path, default=tuned.FOLDER)
    add("--only", nargs="+", default=list(BUDGETS), choices=list(BUDGETS), help="these models")
    add("--trials", type=int, default=1800)
    add("--sampler", default="tpe", choices=["random", "tpe"])
    add("--seed", type=int, default=0)
    add("--jobs", type=int, default=6, help="searches at a time")
    add("--batch", type=int, default=500)
    add("--precision", default="bfloat16")
    chosen = options.parse_args()
    chosen.out.mkdir(exist_ok=True)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        searches = [
            (name, [pool.submit(searched, name, gmacs, chosen) for gmacs in BUDGETS[name]])
            for name in chosen.only
        ]
        for name, running in searches:
            done = [future.result() for future in running]
            contest(name, [entry for entry in done if entry is not None], chosen)


def contest(name: str, entries: Sequence[tuned.Tuned], chosen: argparse.Namespace) -> None:
    """Write the schedules that agree better with the unpruned model than those already there."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = getattr(torch, chosen.precision)
    model = real_model(name, chosen).to(device, precision)
    batches = decoded(model, chosen.shared / TUNE, chosen.batch, chosen.limit)
    stack = Stack([images.to(device, precision) for images, _, _ in batches], None)
    divergence = Objective(model, ZeroTPrune(), stack, memory=8e9)
    for new in entries:
        path = chosen.out / f"{name}-{new.gmacs:g}.json"
        now = divergence(new.schedule).mean_kl
        before = divergence(tuned.read(path).schedule).mean_kl if path.exists() else math.inf
        if now < before:
            tuned.write(path, new)
        print(f"{name}, {new.gmacs} G: KL {now:.4f}, before {before:.4f}; "
              f"{new.schedule.one_line()}", flush=True)  # fmt: skip


def asked(chosen: argparse.Namespace) -> list[str]:
    """Return the options that a schedule depends on."""
    names = ("trials", "sampler", "seed", "batch", "precision", "limit")
    return written({name: getattr(chosen, name) for name in names})


def written(options: Mapping[str, object]) -> list[str]:
    """Format options as in a command, without those that have no value."""
    return [
        part
        for name, value in options.items()
        if value is not None
        for part in (f"--{name}", str(value))
    ]


def searched(name: str, gmacs: float, chosen: argparse.Namespace) -> tuned.Tuned | None:
    """Run one search through the command line; say why if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out, rows = Path(folder, "schedule.json"), Path(folder, "rows.csv")
        options = {"weights": weights_of(name, chosen), "size": SIZE, "gmacs": gmacs, "out": out,
                   "csv": rows}  # fmt: skip
        program = [sys.executable, "-m", "zerotprune", "search", name, str(chosen.shared / TUNE)]
        command = [*program, "--no-labels", *asked(chosen), *written(options)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}, {gmacs} G: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        with rows.open(newline="", encoding="utf-8") as file:
            (row,) = (row for row in csv.DictReader(file) if row["name"] == "search")
        schedule = Schedule.load(out)
    provenance = {name: row[name] for name in PROVENANCE if row[name]}
    about = {
        **provenance,
        "command": " ".join(["python -m benchmarks.search.tuning", *asked(chosen)]),
    }
    apart = backbone(real_model(name, chosen))
    return tuned.Tuned(apart.name, apart.geometry.tokens, gmacs, schedule, about)


if __name__ == "__main__":
    main()
