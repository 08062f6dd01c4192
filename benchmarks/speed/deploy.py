"""Speed where models are deployed: in ONNX Runtime, OpenVINO, ExecuTorch and torch, on a CPU.

A pruned model has static counts, and goes anywhere. Expected: in each runtime Fold, at half of what
DeiT-S needs, keeps nearly all of the speed of slicing, which keeps as many tokens and chooses none;
and int8 composes with it: accuracy on images of `tune`, beside the speed.
Command: python -m benchmarks.speed.deploy --shared DIR --threads 2 (a CPU). What it gave:
docs/deploy.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks.inputs import MODELS, TUNE, add_shared, decoded, measuring, parsed, real_model
from benchmarks.speed.speedup import HALF
from zerotprune import Schedule
from zerotprune.data.models import load
from zerotprune.export import ENDINGS, target_named
from zerotprune.export.results import Timing, time_models
from zerotprune.export.writing import FilePrecision, Job, rivals, write_model
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED, Contender, Result
from zerotprune.measure.speed import LIMIT, SEED, noise
from zerotprune.methods import name_of
from zerotprune.plan import Plan
from zerotprune.surgery import attach, current_plan

SPEED = "deit_small_patch16_224"  # with random weights, which are as quick as any
#: Images for accuracy; int8 is calibrated on others.
IMAGES, CALIBRATION = 300, 100


@dataclass(frozen=True)
class Case:
    """One model in one runtime at one batch size."""

    model: str
    target: str
    batch: int
    int8: bool = False


def main() -> None:
    chosen = options()
    torch.set_num_threads(chosen.threads)
    for case in cases(chosen):
        rows = list(measured(case, chosen))
        records.append(chosen.csv, rows)
        for row in rows:
            shown = ("mode", "batch", "name", "precision", "latency_ms", "speedup", "of_limit",
                     "top1", "change")  # fmt: skip
            print(" | ".join(str(row.get(column, "")) for column in shown), flush=True)


def options() -> argparse.Namespace:
    known = measuring(__doc__)
    add_shared(known)
    add = known.add_argument
    add("--to", nargs="+", default=["onnx", "openvino"], choices=list(ENDINGS))
    add("--batch", nargs="+", type=int, default=[1, 8])
    add("--int8", nargs="*", default=[], choices=list(MODELS), help="accuracy of these in int8")
    add("--skip-speed", action="store_true")
    add("--rounds", type=int, default=15)
    add("--threads", type=int, default=2)
    return parsed(known)


def cases(chosen: argparse.Namespace) -> Iterator[Case]:
    for target in chosen.to:
        if not chosen.skip_speed:
            for batch in chosen.batch:
                yield Case(SPEED, target, batch)
        for model in chosen.int8:
            yield Case(model, target, 1, int8=True)


def measured(case: Case, chosen: argparse.Namespace) -> Iterator[dict[str, object]]:
    """A row for the unpruned model, slicing and Fold, in each precision."""
    torch.manual_seed(SEED)
    model = real_model(case.model, chosen) if case.int8 else load(case.model)
    attach(model.requires_grad_(False), HALF)
    images = noise(model, case.batch, "cpu", torch.float32)
    judged: list[Tensor] = []  # images to judge accuracy by, and their labels
    if case.int8:
        images, *judged = shown(model, chosen)
    precisions: tuple[FilePrecision, ...] = ("float32", "int8") if case.int8 else ("float32",)
    target = target_named(case.target)
    job = Job(target, case.batch, precisions, images, chosen.threads, print)
    with TemporaryDirectory() as folder:
        models = {**rivals(model), name_of(HALF.method): model}
        files = {
            name: write_model(job, candidate, Path(folder, name, f"model{target.ending}"))
            for name, candidate in models.items()
        }
        for timing in time_models(job, files, chosen.rounds):
            row = row_of(case, timing, models[timing.name], chosen)
            if judged and timing.name != LIMIT:
                result, reference = (
                    rated(job, files[name][precision], model, name, judged)
                    for name, precision in (
                        (timing.name, timing.precision), (UNPRUNED.name, precisions[0])
                    )
                )  # fmt: skip
                row |= {"data": TUNE, **records.accuracy_row(result, reference)}
            yield row


def shown(model: nn.Module, chosen: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """Return images to calibrate on, others to judge by, and their labels."""
    count = chosen.limit or IMAGES
    batches = decoded(model, chosen.shared / TUNE, limit=count + CALIBRATION)
    images = torch.cat([images for images, _, _ in batches])
    labels = torch.cat([labels for _, labels, _ in batches])
    every = len(images) // CALIBRATION  # spread evenly over both: they come class by class
    calibrating = torch.zeros(len(images), dtype=torch.bool)
    calibrating[::every][:CALIBRATION] = True
    return images[calibrating], images[~calibrating], labels[~calibrating]


def rated(job: Job, file: Path, model: nn.Module, name: str, judged: list[Tensor]) -> Result:
    """Return the accuracy of a file in its runtime."""
    plan = current_plan(model)
    assert plan is not None
    schedule = Schedule() if name == UNPRUNED.name else plan.schedule
    result = Result(Contender(name, schedule), Plan(schedule, plan.geometry))
    run = job.target.load(file, job.threads)
    for image, label in zip(*(tensor.split(job.step) for tensor in judged), strict=True):
        result.rate(run(image), label)
    return result


def row_of(
    case: Case, timing: Timing, model: nn.Module, chosen: argparse.Namespace
) -> dict[str, object]:
    plan = current_plan(model)
    schedule = plan.schedule if plan is not None else Schedule()
    return {
        "table": "deploy int8" if case.int8 else "deploy",
        "model": case.model,
        "seed": SEED,
        "threads": chosen.threads,
        "measure": "speed",
        "name": timing.name,
        "method": records.method_json(schedule),
        "schedule": schedule.one_line(),
        "batch": case.batch,
        "precision": timing.precision,
        "mode": case.target,
        "images_per_second": round(case.batch / timing.seconds, 1),
        "latency_ms": round(1e3 * timing.seconds, 4),
        "latency_spread_ms": round(1e3 * timing.spread, 4),
        "speedup": "" if timing.speedup is None else round(timing.speedup, 4),
        "of_limit": "" if timing.of_limit is None else round(timing.of_limit, 4),
    }


if __name__ == "__main__":
    main()
