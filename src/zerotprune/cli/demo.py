"""`zerotprune demo`: the built-in model, pruned and not, as a table and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from ..budgets.contenders import Contender, contender
from ..data import demo as built_in
from ..measure import records
from ..measure.accuracy import Batch, Result, compare
from ..pruning import gmacs
from ..show.render import check_drawable, draw
from ..show.scene import make_scene

METHODS = ("zero-tprune", "tome", "ats", "average-attention", "random")
BUDGETS = (0.8, 0.65, 0.5)
BATCH = 25
SEED = 2024  # the pictures of the table; training used another
SCENES = 4


def demo(*, pictures: int = 800, out: Path = Path("demo.png"), csv: Path | None = None) -> None:
    """Evaluate the built-in model unpruned and pruned by three methods at three budgets.

    Prints a table and writes a picture of what was dropped at each stage and what was kept.

    Parameters
    ----------
    pictures
        How many pictures to evaluate.
    out
        Where the drawing goes: PNG, SVG, HTML, GIF or WebP by its ending.
    csv
        Append the table's rows to this file.
    """
    if pictures < 1:
        raise ValueError(f"pictures must be at least 1, got {pictures}")
    check_drawable(out)
    model = built_in.model()
    console = Console()
    results = _measure(model, pictures, console)
    console.print(_table(results, pictures))
    console.print(
        "GMACs: all matrix products with patch embedding and scoring. Change and error: paired, "
        "in points.\nImages per second: the model alone, float32, turn by turn on the same batches "
        f"({records.hardware()}).",
        style="dim",
        highlight=False,
    )
    if csv is not None:
        about = {"seed": SEED, "model": "demo", "data": "demo/test", "batch": BATCH}
        rows = [records.row(result, results[0]) | about for result in results]
        records.append(csv, rows)
    _draw(model, out)
    console.print(f"What was dropped, stage by stage: [bold]{out}[/bold]", highlight=False)


def _contenders(model: nn.Module) -> list[Contender]:
    full, some = gmacs(model), built_in.pictures(BATCH, SEED)[0]
    contenders = [Contender("unpruned")]
    for budget in BUDGETS:
        contenders += [contender(name, model, budget * full, some) for name in METHODS]
    return contenders


def _measure(model: nn.Module, pictures: int, console: Console) -> list[Result]:
    contenders = _contenders(model)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"{len(contenders)} ways to run the model", total=pictures)

        def advance(results: list[Result]) -> None:
            progress.update(bar, completed=len(results[0].index))

        return compare(model, contenders, _batches(pictures), advance)


def _batches(pictures: int) -> Iterator[Batch]:
    for first in range(0, pictures, BATCH):
        count = min(BATCH, pictures - first)
        images, labels = built_in.pictures(count, SEED, first=first)
        yield images, labels, torch.arange(first, first + count)


def _table(results: list[Result], pictures: int) -> Table:
    table = Table(title=f"Built-in model, {pictures} unseen pictures", header_style="bold")
    table.add_column("method")
    for column in ("GMACs", "top-1 %", "change", "images/s", "speed-up"):
        table.add_column(column, justify="right")
    unpruned = results[0]
    for number, result in enumerate(results):
        change, error = result.change(unpruned)
        faster = result.images_per_second / unpruned.images_per_second
        ours = result.contender.name == METHODS[0]
        table.add_row(
            result.contender.name,
            f"{result.gmacs():.3f}",
            f"{result.top1:.1f}",
            f"{change:+.1f} ± {error:.1f}" if number else "",
            f"{result.images_per_second:.0f}",
            f"{faster:.2f}×" if number else "",
            style="bold" if ours else None,
            end_section=number % len(METHODS) == 0,
        )
    return table


def _draw(model: nn.Module, out: Path) -> None:
    images, labels = built_in.pictures(SCENES, SEED + 1)
    chosen = contender(METHODS[0], model, BUDGETS[1] * gmacs(model))
    captions = [f"a {label}" for label in labels.tolist()]
    title = f"{chosen.name} on the built-in model"
    draw(make_scene(title, model, chosen, images, captions), out)
