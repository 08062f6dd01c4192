"""Table 2's throughput: ATS, ToMe and Zero-TPrune at the paper's shares, with DeiT-S.

The paper has DeiT-S 11 to 63 % faster on one A100, precision not stated. Ours: random weights,
batch 512, float32 and bfloat16, eager and as a CUDA graph; speedups are over the unpruned model in
the same precision and mode. a, b and c are our schedules for the paper's costs, in the form of
`zero-tprune-paper` and in ours, "early". ATS keeps as many tokens as an image needs: its cost here
is that on noise.
Command: python -m benchmarks.speed.throughput (a GPU). Results: docs/results-appendix.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch

from benchmarks.inputs import add_speed, measuring, parsed, say
from benchmarks.speed import served
from benchmarks.tables.published import contenders
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure import speed as bench
from zerotprune.measure.accuracy import UNPRUNED
from zerotprune.measure.speed import Mode
from zerotprune.shapes import Precision

NAME = "Table 2's throughput"
MODEL = "deit_small_patch16_224"
LEFT_OUT = ("Zero-TP-b, early", "Zero-TP-c, early")  # compiling takes time
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def add_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--jobs", type=int, default=0, help="compile in so many processes at once")
    add_speed(to)


class Throughput:
    """The cases of the table, each with its cost."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        modes: tuple[Mode, ...] = ("eager", "graph")
        gpu = chosen.device.startswith("cuda")
        self.setup = bench.Setup(chosen.device, modes if gpu else ("eager",), chosen.rounds)
        torch.manual_seed(0)
        self.model = load(MODEL).to(chosen.device)
        noise = bench.noise(self.model, 16, chosen.device, torch.float32)
        timed = [
            contender
            for contender in contenders(self.model, noise)
            if contender.name not in LEFT_OUT
        ]
        self.entered = [
            bench.price(self.model, contender, noise) for contender in (UNPRUNED, *timed)
        ]

    def groups(self) -> Iterable[bench.Group]:
        batch, jobs = self.chosen.speed_batch, self.chosen.jobs
        if not jobs:
            return bench.sweep(self.model, self.entered, PRECISIONS, [batch], self.setup, say)
        cases = [
            [served.Case(MODEL, None, precision, entrant, batch) for entrant in self.entered]
            for precision in PRECISIONS
        ]
        return served.measure(cases, self.setup, jobs, say)

    def measure(self) -> None:
        for group in self.groups():
            about = {"table": NAME, "model": MODEL, "seed": bench.SEED}
            rows = [records.speed_row(speed, group) | about for speed in group.speeds]
            records.append(self.chosen.csv, rows)
            for row in rows:
                cells = (row[column] for column in ("name", "precision", "mode"))
                say(" | ".join([*map(str, cells), str(row.get("images_per_second", ""))]))


def main() -> None:
    options = measuring(__doc__)
    add_options(options)
    Throughput(parsed(options)).measure()


if __name__ == "__main__":
    main()
