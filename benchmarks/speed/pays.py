"""When does it pay? All measured speed-ups of results.csv in one figure, with the limit of each.

A line for each model, image size, batch size and device. Eager, compiled or as a CUDA graph: each
contender is taken the way in which it is fastest there, the unpruned model as well.
Command: python -m benchmarks.speed.pays. What it gave: docs/pays.png.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.figure import Figure

from benchmarks.figures.from_rows import asked
from benchmarks.inputs import DOCS
from benchmarks.speed.speedup import SECTIONS
from zerotprune.measure.speed import LIMIT, UNPRUNED
from zerotprune.methods import DEFAULT
from zerotprune.plots.figure_files import COLOURS, new_figure, save


class Line(NamedTuple):
    """One model at one batch size on one device."""

    label: str
    limit: float
    ours: float


def main() -> None:
    chosen = asked(__doc__, DOCS / "pays.png")
    with chosen.csv.open(newline="", encoding="utf-8") as file:
        lines = lines_of(row for row in csv.DictReader(file) if as_usual(row))
    save(drawn(lines), chosen.out)
    for line in lines:
        print(f"{line.label}: {line.ours:.2f}× of {line.limit:.2f}×")


def as_usual(row: dict[str, str]) -> bool:
    """A speed that was measured, of what `prune_` does by default."""
    usual = row["compute"] in ("", "needed") and row["backend"] in ("", "auto")
    return row["measure"] == "speed" and bool(row["latency_ms"]) and usual


def lines_of(rows: Iterable[dict[str, str]]) -> list[Line]:
    """The newest rows of each case; the one that gains most comes first."""
    sections = {section.model: name for name, section in SECTIONS.items()}
    cases: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["model"] in sections:
            gpu, cores = row["hardware"].split()[-1], row["threads"]
            device = f"{cores} CPU cores" if cores else gpu
            images = "1 image" if row["batch"] == "1" else f"{row['batch']} images"
            label = f"{sections[row['model']]}, {images}, {device}, {row['precision']}"
            times = cases.setdefault(label, {}).setdefault(row["name"], {})
            times[row["mode"]] = float(row["latency_ms"])
    found = []
    for label, case in cases.items():
        if not case.keys() >= {UNPRUNED, LIMIT, DEFAULT}:
            continue
        base, limit, ours = (min(case[name].values()) for name in (UNPRUNED, LIMIT, DEFAULT))
        found.append(Line(label, base / limit, base / ours))
    return sorted(found, key=lambda line: -line.ours)


def drawn(lines: list[Line]) -> Figure:
    figure = new_figure(8, 0.42 * len(lines) + 1.2)
    axis = figure.subplots()
    places = range(len(lines), 0, -1)
    limits, ours = [line.limit for line in lines], [line.ours for line in lines]
    axis.axvline(1, color="#444444", lw=1, ls=":")
    axis.hlines(places, ours, limits, color="#bbbbbb", lw=2)
    axis.plot(limits, places, "|", color="#000000", ms=14, mew=2, label="limit: no scoring at all")
    axis.plot(ours, places, "o", color=COLOURS[0], ms=8, label=DEFAULT)
    axis.set_yticks(list(places), [line.label for line in lines], fontsize=9)
    axis.set_xlabel("speed-up over the unpruned model, each run the way in which it is fastest")
    axis.grid(alpha=0.25, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


if __name__ == "__main__":
    main()
