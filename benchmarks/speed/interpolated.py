"""All methods at equal speed on a GPU, between the costs at which speed and accuracy were measured.

Setting every method to a speed means to compile it again and again, which takes minutes each. So
`speedup` times DeiT-Ti at four costs as a CUDA graph, `off_the_shelf` evaluates both models at the
same costs, and this reads the rows of both: top-1 on a line between two costs, the logarithm of the
divergence likewise. It measures nothing.
Command: python -m benchmarks.speed.interpolated. What it gave: docs/measuring.md.
"""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path

from benchmarks.inputs import MODELS, RESULTS, parser, say

METHODS = ("fold", "diffrate", "tome", "zero-tprune", "evit")
SPEEDUPS = (1.4, 1.5, 1.8, 2.0)
#: tables of `speedup`, and their costs
TABLES = {"speed fold-deit-ti-0.85": 0.85, "speed fold-deit-ti": 0.7,
          "speed fold-deit-ti-0.55": 0.55, "speed fold-deit-ti-0.45": 0.45}  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--csv", type=Path, default=RESULTS)
    with options.parse_args().csv.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    speeds = {
        (row["name"], TABLES[row["table"]]): float(row["speedup"])
        for row in rows  # of several, the last
        if row["table"] in TABLES and row["speedup"] and row["mode"] == "graph"
    }
    say("| speed | method |" + "".join(f" {model.split('_')[0]} | KL |" for model in MODELS))
    say("|---|---|" + "---|---|" * len(MODELS))
    for speedup in SPEEDUPS:
        for method in METHODS:
            cells = [at_speed(rows, speeds, model, method, speedup) for model in MODELS]
            say(f"| {speedup:g}× | {method} | {' | '.join(cells)} |")


def at_speed(
    rows: list[dict[str, str]],
    speeds: dict[tuple[str, float], float],
    model: str,
    method: str,
    speedup: float,
) -> str:
    """Return the change in top-1 and the divergence as two cells, a dash where out of reach."""
    measured = {
        float(row["name"].partition(" @ ")[2]): (float(row["change"]), math.log(float(row["kl"])))
        for row in rows
        if row["table"] == "off-the-shelf" and row["model"] == model
        if row["name"].startswith(f"{method} @ ") and row["kl"]
    }
    points = sorted((speeds[method, cost], *measured[cost]) for cost in TABLES.values())
    for (slow, *worse), (fast, *better) in pairwise(points):
        if slow <= speedup <= fast:
            share = (speedup - slow) / (fast - slow)
            change, log = (a + share * (b - a) for a, b in zip(worse, better, strict=True))
            return f"{change:+.1f} | {math.exp(log):.3f}"
    return "– | –"


if __name__ == "__main__":
    main()
