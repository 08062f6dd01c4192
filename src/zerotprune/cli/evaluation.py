"""Evaluations on the console: from options to contenders, progress bars and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from ..budgets.speed import Timed
from ..calibrate.calibration import Calibration
from ..measure.accuracy import Result
from ..measure.evaluation import Advance, Evaluator, Probe, join_processes
from ..shapes import Precision
from .console import console_for, counting_images, left_out, new_table
from .options import DATA, InputName, ModelOptions, ReadingOptions, resolve_device


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class ProbeOptions:
    """For a model without a head."""

    probe: Probe | None = None
    "For a model without a head: nearest neighbors (`knn`) or a `linear` probe …"
    train: InputName | None = None
    "… learned on these images."


@dataclass(kw_only=True)
class Evaluation(Evaluator):
    """An evaluation that shows its progress."""

    console: Console

    def report_unreadable(self, message: str) -> None:
        left_out(self.console)(message)

    @contextmanager
    def watch(self, description: str, total: int) -> Iterator[Advance]:
        disable = not self.leads
        with counting_images(self.console, description, total, self.world, disable) as show:

            def advance(results: list[Result]) -> None:
                parts = []
                if self.setting.timed:
                    parts.append(f"{results[-1].images_per_second:.0f} images/s")
                if self.probe is None:
                    first = "  ".join(f"{result.top1:.1f}" for result in results[:4])
                    parts.append(f"top-1 so far {first}")
                show(len(results[0].index), ", ".join(parts))

            yield advance


def prepare_evaluation(
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
    """Turn options into an evaluation, together with the other processes under torchrun."""
    if (probing.probe is None) != (probing.train is None):
        raise ValueError("--probe and --train go together")
    device = resolve_device(loading.device)
    rank, world, device = join_processes(device) or (0, 1, device)
    built = loading.load(model)
    adjust = None
    if calibration is not None:  # before the weights are cast to another precision
        adjust = Calibration.load_for(calibration, model, built).applied_to
    evaluation = Evaluation.prepare(
        built,
        reading.open(data, built, loading.size),
        device,
        model_name=model,
        precision=precision,
        train=probing.train,
        size=loading.size,
        timed=speed,
        data=data,
        batch=reading.batch,
        workers=reading.workers,
        strict=reading.strict,
        probe=probing.probe,
        adjust=adjust,
        rank=rank,
        world=world,
        console=console_for(json),
    )
    if loading.random_weights and evaluation.leads:
        evaluation.console.print(
            "random weights: cost and speed are right, accuracy is not", style="yellow"
        )
    return evaluation


def accuracy_table(evaluation: Evaluation, results: list[Result]) -> Table:
    """Return a table with a row for each contender, and its change against the first.

    Speed is a ratio batch by batch, with its quartiles, which are far apart on a busy machine.
    """
    measure = evaluation.probe or "top-1"
    table = new_table(f"{evaluation.model_name}, {len(results[0].hits)} images")
    table.add_column("method", overflow="fold")  # what gives way on a narrow screen
    gpu = any(result.peak_memory for result in results)
    timed = evaluation.setting.timed
    columns = ["GMACs", f"{measure} %", "change", "top-5 %"] + ["speedup (quartiles)"] * timed
    for column in columns + ["MiB"] * gpu:
        width = 14 if column == "change" else max(6, len(column))
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    reference = results[0]
    for number, result in enumerate(results):
        change, error = result.change(reference)
        cells = [
            result.contender.name,
            f"{result.gmacs():.3f}",
            f"{result.top1:.2f}",
            f"{change:+.2f} ± {error:.2f}" if number else "",
            f"{result.top5:.2f}",
        ]
        if timed:
            cells.append(speedup_quartiles(result, reference) if number else "")
        table.add_row(*cells, *([f"{result.peak_memory / 2**20:.0f}"] * gpu))
    return table


def equal_speed_table(
    evaluation: Evaluation,
    results: Sequence[Result],
    targets: Sequence[float],
    timings: Sequence[Timed],
) -> Table:
    """Return a table with a row for each contender at each speed, and its cost there.

    Args:
        evaluation: Model and images.
        results: The unpruned model's, then one for each contender.
        targets: The speedup that each contender was set to.
        timings: What was measured.
    """
    measure, unpruned = evaluation.probe or "top-1", results[0]
    batch = evaluation.batch
    table = new_table(f"{evaluation.model_name}, {len(unpruned.hits)} images, batch {batch}")
    table.add_column("speedup", justify="right", no_wrap=True)
    table.add_column("method", overflow="fold")  # what gives way on a narrow screen
    for column in ("measured", "cost", f"{measure} %", "change", "KL"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row("1", unpruned.contender.name, "", "1", f"{unpruned.top1:.2f}", "", "",
                  end_section=True)  # fmt: skip
    rows = list(zip(targets, results[1:], timings, strict=True))
    for number, (speedup, result, timed) in enumerate(rows, start=1):
        table.add_row(
            f"{speedup:g}",
            result.contender.name,
            f"{timed.speedup:.2f}×",
            f"{result.gmacs() / unpruned.gmacs():.3f}",
            f"{result.top1:.2f}",
            "{:+.2f} ± {:.2f}".format(*result.change(unpruned)),
            f"{fmean(result.kl):.4f}" if result.kl else "",
            end_section=number < len(rows) and targets[number] != speedup,
        )
    return table


def speedup_quartiles(result: Result, reference: Result) -> str:
    """Return the speedup with its quartiles, or with the number of batches if they are few."""
    low, middle, high = result.speedup(reference)
    batches = len(result.seconds_per_image)
    spread = f"({low:.2f}–{high:.2f})" if batches >= 4 else f"(of {batches})"
    return f"{middle:.2f}× {spread}"
