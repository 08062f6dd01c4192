"""Contenders evaluated on data: model, images, a run with a progress bar, rows for the CSV."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from cyclopts import Parameter
from rich.console import Console
from torch import Tensor, nn

from ..backbones import backbone
from ..batching import Batch
from ..calibrate.calibration import Calibration
from ..data.images import ImageDataset, batches, check_classes, open_data
from ..data.models import load
from ..measure import records
from ..measure.accuracy import Contender, Result, Setting, compare
from ..measure.probe import Probe, score
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


@dataclass
class Evaluation:
    """A model on its device, its images, and this process's share of them."""

    model_name: str
    data: str
    options: ReadingOptions
    probe: Probe | None
    model: nn.Module
    dataset: ImageDataset
    train: ImageDataset | None
    setting: Setting
    console: Console
    rank: int = 0
    world: int = 1
    unreadable: list[str] = field(default_factory=list)
    calibration: Calibration | None = None

    @property
    def leads(self) -> bool:
        """Of several processes, one speaks and writes."""
        return self.rank == 0

    def some_images(self, count: int = 32) -> Tensor:
        """A few images, spread over the data, for methods whose cost depends on them."""
        items = self.dataset.items
        chosen = [items[at * len(items) // count] for at in range(count)]
        some = replace(self.dataset, items=chosen)
        found = next(batches(some, count, report=lambda name: None), None)
        if found is None:
            raise ValueError(f"none of the images in {self.data} can be read")
        return found[0].to(self.setting.device, self.setting.precision)

    def run(self, contenders: Sequence[Contender]) -> list[Result]:
        """Every contender on every image; with a probe, on the training images before."""
        if self.calibration is not None:
            contenders = [
                replace(each, schedule=self.calibration.applied(each.schedule))
                for each in contenders
            ]
        trained = None if self.train is None else self._run(contenders, self.train, "training")
        results = self._run(contenders, self.dataset, "evaluating")
        if trained is not None and self.train is not None and self.probe is not None:
            labels = torch.tensor([item.label for item in self.train.items])
            truth = torch.tensor([item.label for item in self.dataset.items])
            for learned, result in zip(trained, results, strict=True):
                score(self.probe, learned, result, labels, truth)
        return results

    def _run(
        self, contenders: Sequence[Contender], dataset: ImageDataset, what: str
    ) -> list[Result]:
        share = len(range(self.rank, len(dataset), self.world))
        with progress_bar(self.console, disable=not self.leads) as progress:
            bar = progress.add_task(what, total=share, note="")

            def advance(results: list[Result]) -> None:
                best = "  ".join(f"{each.top1:.1f}" for each in results[:4])
                told = []
                if self.setting.timed:
                    told.append(f"{results[-1].images_per_second:.0f} images/s")
                if self.probe is None:
                    told.append(f"top-1 so far {best}")
                note = ", ".join(told)
                progress.update(bar, completed=len(results[0].index), note=note)

            try:
                results = compare(
                    self.model, contenders, self._batches(dataset), advance, self.setting
                )
            except KeyboardInterrupt:
                seen = progress.tasks[bar].completed
                raise cut_short(int(seen) * self.world, len(dataset)) from None
        gathered = _gather(results, self.world)
        if not gathered[0].index:
            raise ValueError(f"none of the images in {dataset.name} can be read")
        return gathered

    def _batches(self, dataset: ImageDataset) -> Iterator[Batch]:
        return batches(
            dataset,
            self.options.batch,
            report=left_out(self.console),
            workers=self.options.workers,
            strict=self.options.strict,
            rank=self.rank,
            world=self.world,
            skipped=self.unreadable,
        )

    def row(self, result: Result, reference: Result) -> dict[str, object]:
        """One row of the CSV."""
        precision = str(self.setting.precision).removeprefix("torch.")
        about: dict[str, object] = {
            "model": self.model_name,
            "data": Path(self.data).name,
            "measure": self.probe or "top1",
            "batch": self.options.batch,
        }
        return records.row(result, reference, precision) | about


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
    """Load the model and open the data, and find the place of this process among the others."""
    if (probing.probe is None) != (probing.train is None):
        raise ValueError("--probe and --train go together")
    rank, world, device = _process(loading.device)
    built = load(**loading.named(model))
    calibrated = None
    if calibration is not None:  # before the weights are cast to another precision
        calibrated = Calibration.load_for(calibration, model, built)
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
    setting = Setting(device, dtype, keep_outputs=train is not None, timed=speed)
    console = console_for(json)
    if loading.random_weights and rank == 0:
        console.print("random weights: cost and speed are right, accuracy is not", style="yellow")
    return Evaluation(model, data, reading, probing.probe, built.to(device, dtype), dataset, train,
                      setting, console, rank, world, calibration=calibrated)  # fmt: skip


def _process(device: str) -> tuple[int, int, str]:
    """Rank, number of processes and device; several processes only under torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        state = PartialState(cpu=device == "cpu")
        # Threads of the process group that outlive the interpreter can abort the process.
        atexit.register(state.destroy_process_group)
        return state.process_index, state.num_processes, str(state.device)
    return 0, 1, chosen_device(device)


def _gather(results: list[Result], world: int) -> list[Result]:
    """The shares of all processes, with the images back in their order."""
    if world > 1:
        from accelerate.utils import gather_object

        shares = [gather_object([_portable(result)]) for result in results]
        for result, parts in zip(results, shares, strict=True):
            for name in _portable(result):
                setattr(result, name, [value for part in parts for value in part[name]])
    for result in results:
        order = sorted(range(len(result.index)), key=result.index.__getitem__)
        for name in ("hits", "hits5", "kl", "index"):
            values = getattr(result, name)
            if values:  # a probe's features have no divergence
                setattr(result, name, [values[at] for at in order])
        if result.outputs:
            result.outputs = [torch.cat(result.outputs)[order]]
    return results


def _portable(result: Result) -> dict[str, list[Any]]:
    names = ("index", "hits", "hits5", "kl", "outputs", "seconds_per_image", "kept")
    return {name: getattr(result, name) for name in names}
