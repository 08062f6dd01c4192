"""`zerotprune demo`: the built-in model, pruned and not, as a table and an image."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from ..budgets import schedule_for
from ..data import demo as built_in
from ..measure import records
from ..measure.accuracy import UNPRUNED, Contender, Mean, Result, compare
from ..methods import DEFAULT, name_of, resolve
from ..safety.ranges import RANGES
from ..shapes import Batch
from ..show.layout import check_drawable, draw
from ..show.scene import make_scene
from .console import console_for, counting_images, new_table, print_path, print_table
from .evaluation import speedup_quartiles
from .options import CsvFile, Output

METHODS = (DEFAULT, "zero-tprune", "tome", "ats", "random")
COSTS = (0.8, 0.65, 0.5)
SPEEDUPS = (1.2, 1.5, 1.8)
BATCH = 25
SEED = 2024  # the images of the table; training used another
SCENES, PANELS = 4, 5  # images in the drawing, and how often each is drawn


def demo(
    *,
    images: Annotated[int, RANGES["images"]] = 800,
    out: Output = Path("demo.png"),
    csv: CsvFile = None,
) -> None:
    """Evaluate the built-in model unpruned and pruned by five methods at three budgets.

    Prints what each budget gives and what equal speed costs, and writes an image of what the
    default method merged, stage by stage.

    Example: `zerotprune demo --images 200 --out demo.png`

    Parameters
    ----------
    images
        How many images to evaluate.
    out
        Where the image goes: PNG, SVG, HTML, GIF or WebP by its suffix.
    """
    check_drawable(out)
    model = built_in.model()
    console = console_for()
    results, hardware = _measure(model, images, console), records.hardware("cpu")
    print_table(console, _methods_table(results, images))
    print_table(console, _equal_speed_table(results))
    console.print(
        "GMACs: all matrix products with patch embedding and scoring. Change and error: paired, "
        "in points.\nSpeedup: the model alone, float32, batch by batch in turn "
        f"({hardware}).\nAt equal speed: between the budgets above; – is beyond them. "
        "KL: divergence from the unpruned model.",
        style="dim",
    )
    if csv is not None:
        about = {"seed": SEED, "model": "demo", "data": "demo/test", "batch": BATCH,
                 "hardware": hardware}  # fmt: skip
        rows = [records.row(result, results[0], "float32") | about for result in results]
        records.append(csv, rows)
    _draw_merges(model, out)
    print_path(console, "What was merged, stage by stage", out)


def _contenders(model: nn.Module) -> list[Contender]:
    some = built_in.images(BATCH, SEED)[0]
    contenders = [UNPRUNED]
    for cost in COSTS:
        for name in METHODS:
            images = some if resolve(name).adaptive else None
            schedule = schedule_for(model, cost=cost, method=name, images=images)
            contenders.append(Contender(name, schedule))
    return contenders


def _measure(model: nn.Module, count: int, console: Console) -> list[Result]:
    contenders = _contenders(model)
    with counting_images(console, f"{len(contenders)} ways to run the model", count) as show:
        return compare(
            model, contenders, _batches(count), lambda results: show(len(results[0].index), "")
        )


def _batches(total: int) -> Iterator[Batch]:
    for first in range(0, total, BATCH):
        count = min(BATCH, total - first)
        images, labels = built_in.images(count, SEED, first=first)
        yield images, labels, torch.arange(first, first + count)


def _methods_table(results: list[Result], images: int) -> Table:
    table = new_table(f"Built-in model, {images} unseen images")
    table.add_column("method")
    for column in ("GMACs", "top-1 %", "change", "speedup (quartiles)"):
        table.add_column(column, justify="right")
    unpruned = results[0]
    for number, result in enumerate(results):
        change, error = result.change(unpruned)
        table.add_row(
            result.contender.name,
            f"{result.gmacs():.3f}",
            f"{result.top1:.1f}",
            f"{change:+.1f} ± {error:.1f}" if number else "",
            speedup_quartiles(result, unpruned) if number else "",
            style="bold" if result.contender.name == METHODS[0] else None,
            end_section=number % len(METHODS) == 0,
        )
    return table


def _equal_speed_table(results: list[Result]) -> Table:
    table = new_table("At equal speed: change in points (KL)")
    table.add_column("method")
    for speedup in SPEEDUPS:
        table.add_column(f"{speedup:g}×", justify="right")
    unpruned = results[0]
    for name in METHODS:
        points = [(1.0, 0.0, 0.0)]
        for result in results[1:]:
            if result.contender.name == name:
                change, kl = result.change(unpruned).value, Mean.of(result.kl).value
                points.append((result.speedup(unpruned)[1], change, kl))
        cells = (_at_speed(points, speedup) for speedup in SPEEDUPS)
        table.add_row(name, *cells, style="bold" if name == METHODS[0] else None)
    return table


def _at_speed(points: list[tuple[float, float, float]], speedup: float) -> str:
    """Format change and KL on the line between two measured speeds.

    >>> _at_speed([(1.0, 0.0, 0.0), (2.0, -4.0, 0.2)], 1.5)
    '-2.0 (0.100)'
    """
    for (slow, *before), (fast, *after) in pairwise(sorted(points)):
        if slow <= speedup <= fast and slow < fast:
            share = (speedup - slow) / (fast - slow)
            change, kl = (a + share * (b - a) for a, b in zip(before, after, strict=True))
            return f"{change:+.1f} ({kl:.3f})"
    return "–"


def _draw_merges(model: nn.Module, out: Path) -> None:
    images, labels = built_in.images(SCENES, SEED + 1)
    schedule = schedule_for(model, cost=COSTS[1])
    captions = [f"a {label}" for label in labels.tolist()]
    title = f"{name_of(schedule.method)} on the built-in model"
    draw(make_scene(title, model, schedule, images, captions, panels=PANELS), out)
