"""Tables of methods at equal speed, for README.md and docs/measuring.md, from results.csv.

On a CPU `equal_speed` sets every method to a speed. On a GPU that would mean to compile each again
and again, minutes each time. So `speedup` times DeiT-Ti there at four costs as a CUDA graph,
`off_the_shelf` evaluates both models at the same costs, and the table has what lies between: top-1
on a line between two costs, the logarithm of the divergence likewise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from benchmarks.claims import Row
from benchmarks.inputs import MODELS
from benchmarks.inserts import Insert
from benchmarks.speed import equal_speed
from benchmarks.summary import SHORT
from zerotprune.measure.accuracy import UNPRUNED
from zerotprune.methods import DEFAULT

#: images at a time on a CPU
BATCHES = (8, 1)
#: of the table for GPUs
METHODS = ("fold", "diffrate", "tome", "zero-tprune", "evit")
SPEEDUPS = (1.4, 1.5, 1.8, 2.0)
#: tables of `speedup`, and their costs
TABLES = {"speed fold-deit-ti-0.85": 0.85, "speed fold-deit-ti": 0.7,
          "speed fold-deit-ti-0.55": 0.55, "speed fold-deit-ti-0.45": 0.45}  # fmt: skip
#: the costs that the README shows of a GPU
SHOWN = (0.7, 0.55)


def inserts() -> list[Insert]:
    """Return every table with its page and its mark, see `inserts`."""
    return [
        ("../README.md", "8 images", batches_of_eight), ("../README.md", "other", others),
        ("measuring.md", "equal speed", on_a_cpu), ("measuring.md", "on a GPU", on_a_gpu),
    ]  # fmt: skip


class Found:
    """The newest rows of `equal_speed`: by model, images at a time, speed asked for, and method."""

    def __init__(self, rows: Iterable[Row]) -> None:
        of_table = [row for row in rows if row["table"] == equal_speed.TABLE]
        self.unpruned = {row["model"]: row for row in of_table if row["name"] == UNPRUNED.name}
        self.rows = {(row["model"], int(row["batch"]), row["measure"], row["name"]): row
                     for row in of_table if row["speedup"] and row["kl"]}  # fmt: skip

    def at(self, batch: int, speedup: float, method: str) -> list[Row]:
        """Return the row of each model; none if a model has none."""
        asked = equal_speed.measure(speedup)
        rows = [self.rows.get((model, batch, asked, method)) for model in MODELS]
        return [row for row in rows if row is not None] if all(rows) else []

    def cost(self, row: Row) -> str:
        return f"{float(row['gmacs']) / float(self.unpruned[row['model']]['gmacs']):.2f}"


def batches_of_eight(rows: Sequence[Row]) -> list[str]:
    """List the README's methods at each speed, 8 images at a time on a CPU."""
    found, lines = Found(rows), list[list[str]]()
    for speedup in equal_speed.SPEEDUPS:
        for name in equal_speed.METHODS:
            if of_models := found.at(8, speedup, name):
                first = of_models[0]
                asked = f"{speedup:g}×" if name == DEFAULT else ""
                cells = [asked, _bold(name), _times(first), *map(_change, of_models)]
                lines.append([*cells, f"{float(first['kl']):.4f}", found.cost(first)])
    return _table(["speed", "method", "measured", *SHORT.values(), "KL", "cost"], lines)


def others(rows: Sequence[Row]) -> list[str]:
    """List the README's methods with single images on a CPU, and on a GPU."""
    found, speeds, shelf = Found(rows), _speeds(rows), _off_the_shelf(rows)
    lines = list[list[str]]()
    for speedup in equal_speed.SPEEDUPS:
        cells = []
        for name in equal_speed.METHODS:
            of_models = found.at(1, speedup, name)
            changes = ", ".join(map(_change, of_models))
            cells.append(f"{changes} ({found.cost(of_models[0])})" if of_models else "–")
        if set(cells) != {"–"}:
            label = "" if lines else "CPU, 1 image"
            lines.append([label, f"{speedup:g}×", *cells])
    for cost in SHOWN:
        cells = []
        for name in equal_speed.METHODS:
            of_cost = [shelf.get((model, name, cost)) for model in MODELS]
            speed = speeds.get((name, cost))
            if speed is None or None in of_cost:
                return []
            changes = ", ".join(_change(row) for row in of_cost if row is not None)
            cells.append(f"{speed:.2f}×: {changes}")
        lines.append(["H200, 512 images" if cost == SHOWN[0] else "", f"{cost:g}", *cells])
    return _table(["", "", *map(_bold, equal_speed.METHODS)], lines)


def on_a_cpu(rows: Sequence[Row]) -> list[str]:
    """List every method at every speed, 8 images and one at a time."""
    found, lines = Found(rows), list[list[str]]()
    for batch in BATCHES:
        for speedup in equal_speed.SPEEDUPS:
            start = len(lines)
            for name in (*equal_speed.METHODS, *equal_speed.REST):
                if of_models := found.at(batch, speedup, name):
                    asked = [f"{speedup:g}×", str(batch)] if len(lines) == start else ["", ""]
                    cells = [*asked, name, _times(of_models[0]), found.cost(of_models[0])]
                    for row in of_models:
                        cells += [_change(row), f"{float(row['kl']):.4f}"]
                    lines.append(cells)
    header = ["speed", "images", "method", "measured", "cost"]
    return _table(header + [cell for model in SHORT.values() for cell in (model, "KL")], lines)


def on_a_gpu(rows: Sequence[Row]) -> list[str]:
    """List methods at speeds between those that were measured."""
    speeds, shelf = _speeds(rows), _off_the_shelf(rows)
    if not speeds:
        return []
    lines = []
    for speedup in SPEEDUPS:
        for name in METHODS:
            cells = [cell for model in MODELS for cell in between(
                speeds, shelf, model, name, speedup)]  # fmt: skip
            lines.append([f"{speedup:g}×", name, *cells])
    return _table(["speed", "method"] + [c for m in SHORT.values() for c in (m, "KL")], lines)


def between(
    speeds: Mapping[tuple[str, float], float],
    shelf: Mapping[tuple[str, str, float], Row],
    model: str,
    method: str,
    speedup: float,
) -> tuple[str, str]:
    """Return the change in top-1 and the divergence as cells, dashes where out of reach."""
    points = []
    for cost in TABLES.values():
        speed, row = speeds.get((method, cost)), shelf.get((model, method, cost))
        if speed is not None and row is not None:
            points.append((speed, float(row["change"]), math.log(float(row["kl"]))))
    for (slow, *worse), (fast, *better) in pairwise(sorted(points)):
        if slow <= speedup <= fast:
            share = (speedup - slow) / (fast - slow)
            change, log = (a + share * (b - a) for a, b in zip(worse, better, strict=True))
            return _signed(change, 1), f"{math.exp(log):.3f}"
    return "–", "–"


def _speeds(rows: Iterable[Row]) -> dict[tuple[str, float], float]:
    """Return the newest speedup over the compiled unpruned model, by method and cost."""
    return {
        (row["name"], TABLES[row["table"]]): float(row["speedup"])
        for row in rows
        if row["table"] in TABLES and row["speedup"] and row["mode"] == "graph"
    }


def _off_the_shelf(rows: Iterable[Row]) -> dict[tuple[str, str, float], Row]:
    """Return the newest rows by model, method and cost."""
    named = [(row, *row["name"].partition(" @ ")[::2]) for row in rows
             if row["table"] == "off-the-shelf" and row["kl"]]  # fmt: skip
    return {(row["model"], name, float(cost)): row for row, name, cost in named if cost}


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    if not lines:
        return []
    return [_line(header), "|---" * len(header) + "|", *map(_line, lines)]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _bold(name: str) -> str:
    return f"**{name}**" if name == DEFAULT else name


def _times(row: Row) -> str:
    return f"{float(row['speedup']):.2f}×"


def _change(row: Row) -> str:
    return f"{_signed(float(row['change']), 2)} ± {float(row['change_error']):.2f}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")
