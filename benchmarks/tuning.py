"""Tuned schedules: searched on `tune` for single models, shipped in src/zerotprune/tuned.

Each is the winner of many schedules of its budget: ranked by their agreement with the unpruned
model (KL of the outputs) on one half of the pictures, the best few judged on the other half.
`schedule_for` gives them for these models; searched.py tests them on `report`.
Command: python benchmarks/tuning.py --shared DIR (a GPU; several searches at a time).
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from zerotprune import Schedule, ZeroTPrune, tuned
from zerotprune.backbones import backbone
from zerotprune.models import load

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
    add("--shared", type=Path, default=Path("../shared"), help="weights, pictures")
    add("--out", type=Path, default=tuned.FOLDER)
    add("--only", nargs="+", default=[each.model for each in TARGETS], help="these models")
    add("--trials", type=int, default=3000)
    add("--sampler", default="random", choices=["random", "tpe"])
    add("--jobs", type=int, default=6, help="searches at a time")
    add("--batch", type=int, default=500)
    add("--precision", default="bfloat16")
    add("--limit", type=int, help="only so many pictures, to try it out")
    chosen = parser.parse_args()
    chosen.out.mkdir(exist_ok=True)
    wanted = [each for each in TARGETS if each.model in chosen.only]
    jobs = [(each, gmacs) for each in wanted for gmacs in each.budgets]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for line in pool.map(lambda job: searched(job[0], job[1], chosen), jobs):
            print(line, flush=True)


def asked(chosen: argparse.Namespace) -> list[str]:
    """The options that a schedule depends on."""
    names = ("trials", "sampler", "batch", "precision", "limit")
    given = {name: getattr(chosen, name) for name in names}
    return [f"--{name} {value}" for name, value in given.items() if value is not None]


def searched(target: Target, gmacs: float, chosen: argparse.Namespace) -> str:
    """One search through the command line, and its file."""
    weights = chosen.shared / "weights" / f"{target.weights}.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        out, rows = Path(folder, "schedule.json"), Path(folder, "rows.csv")
        options = {"model": target.model, "weights": weights, "size": target.size, "gmacs": gmacs,
                   "data": chosen.shared / "imagenet" / "tune", "trials": chosen.trials,
                   "batch": chosen.batch, "precision": chosen.precision, "sampler": chosen.sampler,
                   "out": out, "csv": rows}  # fmt: skip
        if chosen.limit:
            options["limit"] = chosen.limit
        command = [sys.executable, "-m", "zerotprune", "search", "--no-labels"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"{target.model}, {gmacs} G: {done.stderr.strip().splitlines()[-1]}"
        with rows.open(newline="", encoding="utf-8") as file:
            (row,) = (row for row in csv.DictReader(file) if row["name"] == "search")
        schedule = Schedule.load(out)
    told = {name: row[name] for name in TOLD if row[name]}
    about = {**told, "command": " ".join(["python benchmarks/tuning.py", *asked(chosen)])}
    model = load(target.model, size=target.size)
    found = tuned.Tuned(tuned.name_of(model), backbone(model).geometry.tokens, gmacs,
                        repr(ZeroTPrune()), schedule, about)  # fmt: skip
    tuned.write(chosen.out / f"{target.model}-{gmacs:g}.json", found)
    return f"{target.model}, {gmacs} G: {row['top1']} % as unpruned; {schedule.one_line()}"


if __name__ == "__main__":
    main()
