"""How `zerotprune bench` shows what it measured: rows, tables, a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ..measure import records
from ..measure.accuracy import Result
from ..measure.speed import LIMIT, SEED, UNPRUNED, Group, Precision, Speed
from ..methods import DEFAULT
from ..plots.comparison import Pace, speed_figure
from .console import new_table

INCONCLUSIVE = "inconclusive"
Accuracy = dict[Precision, list[Result]]  # of the contenders that could be set up


def _measured(speed: Speed, accuracy: Accuracy) -> tuple[Result, Result] | None:
    """The accuracy of a case's contender and of the unpruned model, if they were measured."""
    results = {each.contender.name: each for each in accuracy.get(speed.precision, [])}
    return (results[speed.name], results[UNPRUNED]) if speed.name in results else None


def rows_of(
    group: Group,
    about: Mapping[str, object],
    options: Mapping[str, object],
    data: str | None,
    accuracy: Accuracy,
) -> list[dict[str, object]]:
    """Rows for the CSV. `about` stands in all of them, `options` where the model is pruned; `data`
    is where the accuracy is from."""
    rows = []
    for speed in group.speeds:
        row = {**records.speed_row(speed, group), **about, "seed": SEED}
        if speed.entrant.contender.schedule.stages:
            row |= options
        if (results := _measured(speed, accuracy)) is not None and data is not None:
            row |= {"data": Path(data).name, **records.accuracy_row(*results)}
        rows.append(row)
    return rows


def plot_of(groups: Sequence[Group], model: str) -> Figure:
    """Speed-up against batch size."""
    paces = [
        Pace(speed.name, speed.mode, speed.precision, speed.batch, speedup)
        for group in groups
        for speed in group.speeds
        if (speedup := group.speedup(speed)) is not None
    ]
    if not paces:
        raise ValueError("nothing to draw: the unpruned model could not be measured")
    base = f"the unpruned model ({groups[0].base})"
    return speed_figure(paces, LIMIT, base, f"{model}, {records.hardware()}")


def table_of(group: Group, model: str, accuracy: Accuracy) -> Table:
    """One row for each case, or the reason why it was not measured."""
    first = group.speeds[0]
    table = new_table(f"{model}, batch {first.batch}, {first.precision}, {records.hardware()}")
    modes = len({speed.mode for speed in group.speeds})
    gpu = any(speed.peak_memory for speed in group.speeds)
    failed = any(speed.failure for speed in group.speeds)
    columns = ["GMACs", "images/s", "ms", "spread", "speed-up", "of limit"]
    columns += ["MiB"] * gpu + ["top-1 %", "change"] * bool(accuracy)
    table.add_column("method", overflow="fold")
    table.add_column("mode")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    if failed:
        table.add_column("not measured because", overflow="fold")
    for number, speed in enumerate(group.speeds, start=1):
        last = number % modes == 0 and modes > 1
        cells = _cells(speed, group, gpu, accuracy) + [speed.failure] * failed
        table.add_row(*cells, end_section=last, style="bold" if speed.name == DEFAULT else None)
    return table


def _cells(speed: Speed, group: Group, gpu: bool, accuracy: Accuracy) -> list[str]:
    cells = [speed.name, speed.mode, f"{speed.entrant.gmacs:.3f}" if speed.entrant.gmacs else ""]
    if speed.seconds:
        speedup, share = speedup_of(speed, group), group.of_limit(speed)
        cells += [
            f"{speed.images_per_second:.{0 if speed.images_per_second >= 100 else 1}f}",
            f"{1e3 * speed.latency:.3f}",
            f"{1e3 * speed.spread:.3f}",
            speedup,
            "" if share is None or speedup.startswith(INCONCLUSIVE) else f"{100 * share:.0f} %",
        ]
        cells += [f"{speed.peak_memory / 2**20:.0f}"] * gpu
    else:
        cells += [""] * (5 + gpu)
    if accuracy:
        results = _measured(speed, accuracy)
        if results is None:
            return [*cells, "", ""]
        own, unpruned = results
        cells += [f"{own.top1:.2f}", "{:+.2f} ± {:.2f}".format(*own.change(unpruned))]
    return cells


def speedup_of(speed: Speed, group: Group) -> str:
    """The speed-up, unless the rounds differ more among themselves than the two models do; then
    its quartiles stand for it."""
    speedup, found = group.speedup(speed), group.speedup_range(speed)
    if speedup is None or found is None:
        return ""
    low, high = found
    if high - low > abs(speedup - 1):
        return f"{INCONCLUSIVE}\n({low:.2f}–{high:.2f})"  # a cell of 80 columns
    return f"{speedup:.2f}×"


def remarks(
    groups: Sequence[Group], accuracy: Accuracy, data: str | None, whole: bool
) -> list[str]:
    """What a reader of the tables has to know."""
    said = [
        f"Speed-up: over the unpruned model ({groups[0].base}). Of limit: share of the speed of "
        "slicing in the same mode, which keeps as many tokens and chooses none.",
        "ms: median of one call; spread: between its quartiles.",
    ]
    cells = [speedup_of(speed, group) for group in groups for speed in group.speeds]
    if any(cell.startswith(INCONCLUSIVE) for cell in cells):
        said.append("Inconclusive: the speed-up varies more from round to round (quartiles) than "
                    "it differs from 1; more --rounds or a quiet machine may tell.")  # fmt: skip
    if not whole:
        said.append("Stopped: only finished rounds count.")
    if accuracy:
        results = next(iter(accuracy.values()))
        said.append(f"Accuracy: {len(results[0].hits)} images, change with paired error.")
    else:
        said.append(f"accuracy not measured: {'give --data' if data is None else 'stopped'}")
    return said
