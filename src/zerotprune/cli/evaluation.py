"""Evaluations on the console: from options to an evaluation with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from cyclopts import Parameter
from rich.console import Console

from ..backbones import backbone
from ..calibrate.calibration import Calibration
from ..data.images import check_classes, open_data
from ..data.models import load
from ..measure.accuracy import Result, Setting
from ..measure.evaluation import Advance, Evaluator, join_processes
from ..measure.probe import Probe
from .console import console_for, cut_short, left_out, progress_bar
from .options import DATA, ModelOptions, Precision, ReadingOptions, chosen_device


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class ProbeOptions:
    """For a model without a head."""

    probe: Probe | None = None
    "For a model without a head: nearest neighbours (`knn`) or a `linear` probe …"
    train: str | None = None
    "… learned on these images."


@dataclass(kw_only=True)
class Evaluation(Evaluator):
    """An evaluation that shows its progress."""

    console: Console

    def report_unreadable(self, message: str) -> None:
        left_out(self.console)(message)

    @contextmanager
    def watch(self, description: str, total: int) -> Iterator[Advance]:
        with progress_bar(self.console, disable=not self.leads) as progress:
            share = len(range(self.rank, total, self.world))
            bar = progress.add_task(description, total=share, note="")

            def advance(results: list[Result]) -> None:
                parts = []
                if self.setting.timed:
                    parts.append(f"{results[-1].images_per_second:.0f} images/s")
                if self.probe is None:
                    first = "  ".join(f"{result.top1:.1f}" for result in results[:4])
                    parts.append(f"top-1 so far {first}")
                note = ", ".join(parts)
                progress.update(bar, completed=len(results[0].index), note=note)

            try:
                yield advance
            except KeyboardInterrupt:
                seen = int(progress.tasks[bar].completed) * self.world
                raise cut_short(seen, total) from None


def prepare(
    model: str,
    data: str,
    loading: ModelOptions,
    reading: ReadingOptions,
    probing: ProbeOptions,
    *,
    precision: Precision = "float32",
    calibration: Path | None = None,
    speed: bool = True,
    json: bool = False,
) -> Evaluation:
    """Load the model, open the data, and join the other processes under torchrun."""
    if (probing.probe is None) != (probing.train is None):
        raise ValueError("--probe and --train go together")
    rank, world, device = join_processes(loading.device) or (0, 1, chosen_device(loading.device))
    built = load(**loading.named(model))
    adjust = None
    if calibration is not None:  # before the weights are cast to another precision
        calibrated = Calibration.load_for(calibration, model, built)
        adjust = calibrated.applied_to
    dataset, train = reading.open(data, built, loading.size), None
    vit = backbone(built)
    if probing.train is not None:
        train = open_data(probing.train, transform=vit.transform(loading.size))
        check_classes(dataset, train.classes)
    elif vit.outputs == 0:
        raise ValueError(f"{model} has no head: give --probe and --train")
    else:
        check_classes(dataset, vit.outputs)
    dtype: torch.dtype = getattr(torch, precision)
    console = console_for(json)
    if loading.random_weights and rank == 0:
        console.print("random weights: cost and speed are right, accuracy is not", style="yellow")
    return Evaluation(
        model_name=model,
        data=data,
        model=built.to(device, dtype),
        dataset=dataset,
        setting=Setting(device, dtype, keep_outputs=train is not None, timed=speed),
        batch=reading.batch,
        workers=reading.workers,
        strict=reading.strict,
        probe=probing.probe,
        train=train,
        adjust=adjust,
        rank=rank,
        world=world,
        console=console,
    )
