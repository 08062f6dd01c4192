"""Table 2's throughput: ATS, ToMe and Zero-TPrune at the paper's shares, with DeiT-S.

The paper has DeiT-S 11 to 63 % faster on one A100, precision not stated. Ours: random weights,
batch 512, float32 and bfloat16, eager and as a CUDA graph; speed-ups are over the unpruned model in
the same precision and mode. a, b and c are our schedules for the paper's costs, in the form of
`zero-tprune-paper` and in ours, "early". ATS keeps as many tokens as an image needs: its cost here
is that on noise.
Command: python -m benchmarks.speed.throughput (a GPU). Results: docs/results-appendix.md.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.inputs import add_speed, measuring, parsed, say
from benchmarks.speed import precompile
from benchmarks.tables.published import contenders
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure import speed as bench
from zerotprune.measure.accuracy import UNPRUNED
from zerotprune.measure.speed import Mode

NAME = "Table 2's throughput"
MODEL = "deit_small_patch16_224"
LEFT_OUT = ("Zero-TP-b, early", "Zero-TP-c, early")  # compiling takes time
PRECISIONS: tuple[bench.Precision, ...] = ("float32", "bfloat16")


def add_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--jobs", type=int, default=0, help="compile ahead in so many processes")
    add_speed(to)


class Throughput:
    """The cases of the table: made, compiled ahead if wanted, measured."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        modes: tuple[Mode, ...] = ("eager", "graph")
        gpu = chosen.device.startswith("cuda")
        self.setup = bench.Setup(chosen.device, modes if gpu else ("eager",), chosen.rounds)
        torch.manual_seed(0)
        self.model = load(MODEL).to(chosen.device)
        noise = bench.noise(self.model, 16, chosen.device, torch.float32)
        found = [each for each in contenders(self.model, noise) if each.name not in LEFT_OUT]
        self.entered = [bench.price(self.model, each, noise) for each in (UNPRUNED, *found)]

    def compile_ahead(self) -> None:
        """Into the compiler's cache; meanwhile the GPU may do other work."""
        cases = [
            precompile.Case(MODEL, None, precision, each.contender, self.chosen.speed_batch)
            for precision in PRECISIONS
            for each in self.entered
        ]
        if self.chosen.jobs and self.setup.compiles:
            precompile.run(cases, self.setup, self.chosen.jobs)

    def measure(self) -> None:
        groups = bench.sweep(self.model, self.entered, PRECISIONS, [self.chosen.speed_batch],
                             self.setup, say)  # fmt: skip
        for group in groups:
            about = {"table": NAME, "model": MODEL, "seed": bench.SEED}
            rows = [records.speed_row(speed, group) | about for speed in group.speeds]
            records.append(self.chosen.csv, rows)
            for row in rows:
                cells = (row[each] for each in ("name", "precision", "mode"))
                say(" | ".join([*map(str, cells), str(row.get("images_per_second", ""))]))


def main() -> None:
    options = measuring(__doc__)
    add_options(options)
    throughput = Throughput(parsed(options))
    throughput.compile_ahead()
    throughput.measure()


if __name__ == "__main__":
    main()
