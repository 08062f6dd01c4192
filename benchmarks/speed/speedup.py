"""Speed over the compiled unpruned model and against the limit, with accuracy beside it.

The paper has DeiT-S 45 % faster at 35 % fewer FLOPs, for 0.4 points of top-1. Ours: every case in
turn, eager, compiled and as a CUDA graph, in bfloat16; speedups are over the *compiled* unpruned
model, and the limit is slicing, which keeps as many tokens and computes nothing to choose them.
Weights are random but those of DeiT-Ti, whose accuracy stands beside its speed.
Command: python -m benchmarks.speed.speedup --shared DIR (a GPU). What it gave: docs/measuring.md.
Fold beside its rivals alone: --only fold-deit-s fold-deit-b fold-deit-ti fold-dinov2-b-518
--methods fold tome zero-tprune diffrate --mode graph --jobs 12. What it gave: docs/fold.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import get_args

import torch

from benchmarks.inputs import DOCS, REPORT, add_shared, decoded, measuring, parsed, say, spread
from benchmarks.speed import served
from zerotprune import Schedule, Stage, schedule_for
from zerotprune.cost import Compute
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure import speed as bench
from zerotprune.measure.accuracy import UNPRUNED, Result, Setting, compare
from zerotprune.measure.speed import MODES
from zerotprune.methods import DEFAULT, Fold, name_of
from zerotprune.scoring.scorer import Backend

METHODS = (DEFAULT, "zero-tprune", "tome")  # ours first, then two others: compiling takes time


#: About half of what DeiT needs, from block 4 on.
HALF = Schedule(
    tuple(Stage(4 + at, similar=count) for at, count in enumerate((61, 31, 20, 15, 12, 10, 9, 8))),
    Fold(),
)


@dataclass(frozen=True)
class Section:
    """One model of the table, by a schedule or at a share of its unpruned cost."""

    model: str
    batches: tuple[int, ...]
    schedule: Schedule | float
    rivals: tuple[int, ...] = ()  # at these batch sizes the rivals run too
    size: int | None = None
    weights: str | None = None  # a file in --shared, for a model whose accuracy is measured too


PAPER = Schedule.preset("ablation-is")
SECTIONS = {
    "deit-s": Section("deit_small_patch16_224", (512, 64, 1), PAPER),
    "deit-b": Section("deit_base_patch16_224", (256,), PAPER),
    "deit-ti": Section("deit_tiny_patch16_224", (512,), PAPER, (512,),
                       weights="deit_tiny_patch16_224.safetensors"),
    "dinov2-b-518": Section("vit_base_patch14_dinov2", (32,), schedule=0.65, size=518),
    "vit-l-384": Section("vit_large_patch16_384", (32,), 0.65),
    "fold-deit-s": Section("deit_small_patch16_224", (512, 64), 0.6, (512, 64)),
    "fold-deit-b": Section("deit_base_patch16_224", (256,), 0.6, (256,)),
    "fold-deit-ti": Section("deit_tiny_patch16_224", (512,), 0.7, (512,)),
    **{f"fold-deit-ti-{cost}": Section("deit_tiny_patch16_224", (512,), cost, (512,))
       for cost in (0.85, 0.55, 0.45)},
    "fold-dinov2-b-518": Section("vit_base_patch14_dinov2", (32,), 0.6, (32,), size=518),
}  # fmt: skip


def main() -> None:
    chosen = options()
    setup = bench.Setup(
        chosen.device, tuple(chosen.mode), chosen.rounds, chosen.compute, chosen.backend
    )
    setup.check()
    fields = [] if chosen.draw else [Field(name, chosen, setup) for name in chosen.only]
    for field, groups in timed(fields, setup, chosen.jobs):
        records.append(chosen.csv, field.rows(groups))
    if not chosen.rows_only:
        draw(chosen.csv, chosen.plots)


def options() -> argparse.Namespace:
    known = measuring(__doc__)
    add_shared(known)
    gpu = torch.cuda.is_available()
    add = known.add_argument
    add("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="NAME",
        help=", ".join(SECTIONS))  # fmt: skip
    add("--methods", nargs="+", default=list(METHODS))
    add("--batch", nargs="+", type=int, help="these batch sizes instead of the section's")
    add("--rivals", nargs="+", type=int, help="the rivals at these batch sizes, likewise")
    add("--jobs", type=int, default=0, help="compile in so many processes at once")
    add("--precision", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    add("--mode", nargs="+", default=list(MODES if gpu else MODES[:2]), choices=MODES)
    add("--rounds", type=int, default=15)
    add("--compute", default="needed", choices=get_args(Compute))
    add("--backend", default="auto", choices=get_args(Backend))
    add("--plots", type=Path, default=DOCS, help="folder for the plots")
    add("--rows-only", action="store_true", help="draw no plots: a machine without matplotlib")
    add("--draw", action="store_true", help="only draw the plots again, from the rows")
    return parsed(known)


def timed(
    fields: Sequence[Field], setup: bench.Setup, jobs: int
) -> Iterator[tuple[Field, list[bench.Group]]]:
    """Time one field after the other, or compile all of them at once and time them then."""
    if not jobs:
        for field in fields:
            yield field, field.sweep()
        return
    groups = served.measure([*chain(*(field.cases() for field in fields))], setup, jobs, say)
    for field in fields:
        yield field, [groups.pop(0) for _ in field.entered]


class Field:
    """A section with its model, its images if any, and the contenders at each batch size."""

    def __init__(self, name: str, chosen: argparse.Namespace, setup: bench.Setup) -> None:
        section = SECTIONS[name]
        self.name, self.section, self.chosen, self.setup = name, section, chosen, setup
        weights = chosen.shared / "weights" / section.weights if section.weights else None
        torch.manual_seed(0)
        self.model = load(section.model, weights=weights, size=section.size).to(chosen.device)
        schedule = section.schedule
        if not isinstance(schedule, Schedule):
            schedule = schedule_for(self.model, cost=schedule)
        self.batches = []
        if section.weights:
            self.batches = decoded(self.model, chosen.shared / REPORT, limit=chosen.limit)
        noise = bench.noise(self.model, 8, chosen.device, torch.float32)
        some = spread(self.batches, 32).to(chosen.device) if self.batches else noise
        names = [name_of(schedule.method), *chosen.methods]
        entered = bench.entrants(self.model, schedule, names, some)
        with_rivals = chosen.rivals or section.rivals
        self.entered = {
            batch: entered if batch in with_rivals else entered[:3]
            for batch in chosen.batch or section.batches
        }
        self.everybody = entered

    def cases(self) -> list[list[served.Case]]:
        """Return everything to compile, by batch size."""
        section, precision = self.section, self.chosen.precision
        return [
            [
                served.Case(section.model, section.size, precision, entrant, batch)
                for entrant in entered
                if not entrant.failure
            ]
            for batch, entered in self.entered.items()
        ]

    def sweep(self) -> list[bench.Group]:
        """Time everything in this process."""
        precisions = [self.chosen.precision]
        return [
            group
            for batch, entered in self.entered.items()
            for group in bench.sweep(self.model, entered, precisions, [batch], self.setup, say)
        ]

    def rows(self, groups: Sequence[bench.Group]) -> list[dict[str, object]]:
        """Return a row for each time, with the accuracy beside it where there are images."""
        accuracy = self.accuracies() if self.batches else {}
        gpu = self.chosen.device.startswith("cuda")
        about: dict[str, object] = {
            "table": f"speed {self.name}",
            "model": self.section.model,
            "seed": bench.SEED,
            "threads": "" if gpu else torch.get_num_threads(),
        }
        return [row_of(speed, group, about, self.setup, accuracy)
                for group in groups for speed in group.speeds]  # fmt: skip

    def accuracies(self) -> dict[str, Result]:
        """Return the accuracies by contender, in the same precision."""
        dtype: torch.dtype = getattr(torch, self.chosen.precision)
        contenders = [entrant.contender for entrant in self.everybody if not entrant.failure]
        setting = Setting(self.chosen.device, dtype, False, self.setup.compute, self.setup.backend)
        results = compare(self.model.to(dtype), contenders, self.batches, setting=setting)
        return {result.contender.name: result for result in results}


def row_of(
    speed: bench.Speed,
    group: bench.Group,
    about: dict[str, object],
    setup: bench.Setup,
    accuracy: dict[str, Result],
) -> dict[str, object]:
    row = {**records.speed_row(speed, group), **about}
    if speed.entrant.contender.schedule.stages:
        row |= {"compute": setup.compute, "backend": setup.backend}
    if speed.name in accuracy:
        unpruned = accuracy[UNPRUNED.name]
        row |= {"data": REPORT}
        row |= records.accuracy_row(accuracy[speed.name], unpruned)
    numbers = ("images_per_second", "latency_ms", "speedup", "of_limit", "peak_memory_mb", "change")
    case = (speed.batch, speed.name, speed.mode)
    say(" | ".join(str(cell) for cell in (*case, *(row.get(column, "") for column in numbers))))
    return row


def draw(path: Path, folder: Path) -> None:
    """Plot the newest rows of each section in the file."""
    from zerotprune.plots.comparison import Pace, speed_figure
    from zerotprune.plots.figures import save

    newest: dict[str, dict[tuple[str, str, str, int], tuple[Pace, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["table"].startswith("speed ") and row["speedup"]:
                pace = Pace(row["name"], row["mode"], row["precision"], int(row["batch"]),
                            float(row["speedup"]))  # fmt: skip
                title = f"{row['model']}, {row['hardware']}"
                newest.setdefault(row["table"], {})[pace[:4]] = (pace, title)
    for table, entries in newest.items():
        paces = [pace for pace, _ in entries.values()]
        title = next(iter(entries.values()))[1]
        figure = speed_figure(paces, bench.LIMIT, "the compiled unpruned model", title)
        save(figure, folder / f"{table.replace(' ', '-')}.png")


if __name__ == "__main__":
    main()
