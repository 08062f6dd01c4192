"""What the measuring commands share: model, data, a run with a progress bar, rows for the CSV."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ..budgets.contenders import Contender
from ..calibrate.calibration import Calibration
from ..data.images import Pictures, batches, check_classes, open_data, transform_for
from ..data.models import load
from ..measure import records
from ..measure.accuracy import Batch, Result, Setting, compare
from ..measure.probe import Probe, score
from .subject import Subject, chosen_device

Precision = Literal["float32", "bfloat16", "float16"]


@Parameter(name="*")
@dataclass(frozen=True)
class Source(Subject):
    """What `evaluate` and `compare` are told."""

    probe: Probe | None = None
    "For a model without a head: nearest neighbours (`knn`) or a `linear` probe …"
    train: str | None = None
    "… learned on these pictures."
    workers: int = 2
    "Processes that decode pictures."
    precision: Precision = "float32"
    "Of the model; scores are float32 in any case."
    calibration: Path | None = None
    "Rounds for stages that leave them open, and the VHF range: what `calibrate` wrote."


@dataclass
class Session:
    """A model on its device, its pictures, and this process's share of them."""

    source: Source
    model: nn.Module
    pictures: Pictures
    train: Pictures | None
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
        """A few pictures, spread over the data, for methods whose cost depends on them."""
        items = self.pictures.items
        chosen = [items[at * len(items) // count] for at in range(count)]
        some = replace(self.pictures, items=chosen)
        images = next(batches(some, count, report=lambda name: None))[0]
        return images.to(self.setting.device, self.setting.precision)

    def run(self, contenders: Sequence[Contender]) -> list[Result]:
        """Every contender on every picture; with a probe, on the training pictures before."""
        if self.calibration is not None:
            contenders = [self.calibration.contender(each) for each in contenders]
        trained = None if self.train is None else self._run(contenders, self.train, "training")
        results = self._run(contenders, self.pictures, "evaluating")
        if trained is not None and self.train is not None and self.source.probe is not None:
            labels = torch.tensor([item.label for item in self.train.items])
            truth = torch.tensor([item.label for item in self.pictures.items])
            for learned, result in zip(trained, results, strict=True):
                score(self.source.probe, learned, result, labels, truth)
        return results

    def _run(self, contenders: Sequence[Contender], pictures: Pictures, what: str) -> list[Result]:
        share = len(range(self.rank, len(pictures), self.world))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("{task.fields[note]}"), TimeRemainingColumn())  # fmt: skip
        progress = Progress(*columns, console=self.console, transient=True, disable=not self.leads)
        with progress:
            bar = progress.add_task(what, total=share, note="")

            def advance(results: list[Result]) -> None:
                best = "  ".join(f"{each.top1:.1f}" for each in results[:4])
                note = f"{results[-1].images_per_second:.0f} images/s"
                if self.source.probe is None:
                    note += f", top-1 so far {best}"
                progress.update(bar, completed=len(results[0].index), note=note)

            found = compare(self.model, contenders, self._batches(pictures), advance, self.setting)
        return _gathered(found, self.world)

    def _batches(self, pictures: Pictures) -> Iterator[Batch]:
        return batches(
            pictures,
            self.source.batch,
            report=lambda message: self.console.print(f"left out: {message}", style="yellow"),
            workers=self.source.workers,
            strict=self.source.strict,
            rank=self.rank,
            world=self.world,
            skipped=self.unreadable,
        )

    def row(self, result: Result, reference: Result) -> dict[str, object]:
        """One row of the CSV."""
        source = self.source
        about: dict[str, object] = {
            "model": source.model,
            "data": Path(source.data).name,
            "measure": source.probe or "top1",
            "batch": source.batch,
            "precision": source.precision,
        }
        return records.row(result, reference) | about


def start(source: Source, quiet: bool = False) -> Session:
    """Load the model and the data, and find the place of this process among the others."""
    if (source.probe is None) != (source.train is None):
        raise ValueError("--probe and --train go together")
    rank, world, device = place(source.device)
    precision: torch.dtype = getattr(torch, source.precision)
    model = load(**source.named())
    calibration = None
    if source.calibration is not None:  # before the weights are cast to another precision
        calibration = Calibration.load_for(source.calibration, source.model, model)
    pictures, train = source.pictures(model), None
    if source.train is not None:
        train = open_data(source.train, transform=transform_for(model, source.size))
    outputs = int(getattr(model, "num_classes", 0))
    if train is not None:
        check_classes(pictures, train.classes)
    elif outputs == 0:
        raise ValueError(f"{source.model} has no head: give --probe and --train")
    else:
        check_classes(pictures, outputs)
    model = model.to(device, precision)
    setting = Setting(device, precision, keep_outputs=train is not None)
    console = Console(file=sys.stderr if quiet else None)
    return Session(source, model, pictures, train, setting, console, rank, world,
                   calibration=calibration)  # fmt: skip


def place(device: str) -> tuple[int, int, str]:
    """Rank, number of processes and device; several processes only under torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        state = PartialState(cpu=device == "cpu")
        return state.process_index, state.num_processes, str(state.device)
    return 0, 1, chosen_device(device)


def _gathered(results: list[Result], world: int) -> list[Result]:
    """The shares of all processes, with the pictures back in their order."""
    if world > 1:
        from accelerate.utils import gather_object

        shares = [gather_object([_portable(result)]) for result in results]
        for result, parts in zip(results, shares, strict=True):
            for name in _portable(result):
                setattr(result, name, [value for part in parts for value in part[name]])
    for result in results:
        order = sorted(range(len(result.index)), key=result.index.__getitem__)
        for name in ("hits", "hits5", "index"):
            values = getattr(result, name)
            setattr(result, name, [values[at] for at in order])
        if result.outputs:
            result.outputs = [torch.cat(result.outputs)[order]]
    return results


def _portable(result: Result) -> dict[str, list[Any]]:
    names = ("index", "hits", "hits5", "outputs", "seconds_per_image", "kept")
    return {name: getattr(result, name) for name in names}
