"""`zerotprune calibrate`: the rounds and the VHF range that a model wants, from pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..calibrate.calibration import Identity
from ..calibrate.measure import Findings, Search, measure, usual_schedule
from ..calibrate.rounds import THRESHOLD
from ..data.images import Pictures, batches, check_classes
from ..data.models import load
from ..files import check_writable
from ..measure import records
from ..measure.accuracy import Batch
from ..plots import calibration as drawing
from ..plots.figures import check_target, save
from .arguments import preset_or_file
from .findings import rounds_lines, rounds_table, vhf_lines
from .subject import Subject, chosen_device

FIGURES = ("score-distributions.png", "kl-by-block.png", "vhf-ranges.png")


def calibrate(
    subject: Subject,
    *,
    out: Path,
    figures: Path | None = None,
    threshold: float = THRESHOLD,
    schedule: str | None = None,
    labels: bool = True,
    evaluations: int = 40,
    seed: int = 0,
    workers: int = 2,
) -> None:
    """Measure how many rounds each block needs and search the VHF range; write a calibration JSON.

    It is used by --calibration in other commands. A model without a head has no accuracy to search
    a range by: it gets its rounds, and keeps the default range.

    Parameters
    ----------
    out
        The calibration, a JSON file.
    figures
        Folder for score-distributions.png, kl-by-block.png and vhf-ranges.png.
    threshold
        A block has voted enough when KL(50 rounds ‖ r rounds) is below this share of its spread,
        KL(50 rounds ‖ flat).
    schedule
        How the model is pruned while the range is searched: a preset or a JSON file. Default:
        vhf-search for models of 12 blocks, else one for 0.7 of the cost.
    labels
        Search by top-1 on the labels; without them, by KL(unpruned ‖ pruned) of the outputs.
    evaluations
        How many ranges are tried at most; 0 leaves the search out.
    seed
        Of the random starts.
    workers
        Processes that decode pictures.
    """
    _check(out, figures, threshold, schedule, evaluations)
    device = chosen_device(subject.device)
    console = Console()
    model = load(**subject.named())
    outputs, plan = int(getattr(model, "num_classes", 0)), None
    searching = outputs > 0 and evaluations > 0
    pictures = subject.pictures(model, labelled=searching and labels)
    if searching:
        if labels:
            check_classes(pictures, outputs)
        chosen = usual_schedule(model) if schedule is None else preset_or_file(schedule)
        plan = Search(chosen, labels, evaluations, seed)
        plan.check(model)
    identity = Identity.of(subject.model, model)
    with _progress(console, len(pictures), evaluations if plan else 0) as advance:
        stream = _batches(subject, pictures, workers, console)
        found = measure(model.to(device), stream, plan, threshold, device, advance)
    about = {"pictures": found.pictures, "data": Path(subject.data).name, "seed": seed}
    found.calibration(identity, about | records.surroundings()).save(out)
    if figures is not None:
        _draw(found, f"{subject.model}, {found.pictures} pictures", figures)
    console.print(rounds_table(found.rows, subject.model, found.pictures))
    for line in [*rounds_lines(found.rows, threshold), *vhf_lines(found.verdict, outputs > 0)]:
        console.print(line, highlight=False)
    console.print(f"written: [bold]{out}[/bold]", highlight=False)


def _check(
    out: Path, figures: Path | None, threshold: float, schedule: str | None, evaluations: int
) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("calibrate runs in one process: start it without torchrun")
    if not threshold > 0:
        raise ValueError(f"threshold must be a positive number, got {threshold}")
    if evaluations < 0:
        raise ValueError(f"evaluations must be at least 0, got {evaluations}")
    if schedule is not None:
        preset_or_file(schedule)
    check_writable(out)
    if figures is not None:
        check_target(figures / FIGURES[0])


def _batches(
    subject: Subject, pictures: Pictures, workers: int, console: Console
) -> Iterator[Batch]:
    return batches(
        pictures,
        subject.batch,
        report=lambda message: console.print(f"left out: {message}", style="yellow"),
        workers=workers,
        strict=subject.strict,
    )


@contextmanager
def _progress(console: Console, pictures: int, ranges: int) -> Iterator[Callable[[str, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {"pictures": progress.add_task("voting in every block", total=pictures)}
        if ranges:
            bars["ranges"] = progress.add_task("trying VHF ranges", total=ranges)
        yield lambda what, count: progress.advance(bars[what], count)


def _draw(found: Findings, title: str, folder: Path) -> None:
    first, second, third = FIGURES
    save(drawing.distributions_figure(found.blocks, title), folder / first)
    save(drawing.divergence_figure(found.rows, found.threshold, title), folder / second)
    if found.verdict is not None:
        save(drawing.ranges_figure(found.verdict, title), folder / third)
