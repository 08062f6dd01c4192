"""Do token numbers that are multiples of 8 or 16 run faster? One block of a model, by tokens.

Hardware works in tiles, so a schedule whose counts are such multiples might be faster at the same
cost. That would be worth an option of `schedule_for` only if a block's time for each token is
lower there than between.
Command: python benchmarks/counts.py (a GPU).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from table import RESULTS

from zerotprune.budgets.contenders import Contender
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure import speed as bench


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, nargs=2, default=(168, 200), help="from, to")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--csv", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    model: Any = load(chosen.model).to(chosen.device, torch.bfloat16)
    torch.manual_seed(0)
    first, last = chosen.tokens
    x = torch.randn(chosen.batch, last, model.embed_dim, device=chosen.device).bfloat16()
    inputs = {count: x[:, :count].contiguous() for count in range(first, last + 1)}
    clock, block = bench.stopwatch(chosen.device), model.blocks[0]
    speeds = {
        count: bench.Speed(
            bench.Entrant(Contender(f"{count} tokens")), "eager", chosen.batch, "bfloat16"
        )
        for count in inputs
    }
    calls = [(speeds[count], lambda part=part: block(part)) for count, part in inputs.items()]
    with torch.inference_mode():
        bench.take_turns(calls, chosen.rounds, clock)
    rows = [
        {
            "table": "counts",
            "model": chosen.model,
            "measure": "one block",
            "name": speed.name,
            "batch": chosen.batch,
            "precision": "bfloat16",
            "mode": "eager",
            "latency_ms": round(1e3 * speed.latency, 4),
            "latency_spread_ms": round(1e3 * speed.spread, 4),
        }
        for speed in speeds.values()
    ]
    records.append(chosen.csv, rows)
    each = {count: 1e6 * speed.latency / count for count, speed in speeds.items()}
    for step in (8, 16):
        on = [each[count] for count in each if count % step == 0]
        off = [each[count] for count in each if count % step]
        print(f"multiples of {step}: {sum(on) / len(on):.3f} µs for each token of the "
              f"batch, others {sum(off) / len(off):.3f}")  # fmt: skip
    print({count: round(speed.latency * 1e3, 4) for count, speed in speeds.items()})


if __name__ == "__main__":
    main()
