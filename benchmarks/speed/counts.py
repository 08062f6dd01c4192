"""Do token numbers that are multiples of 8 or 16 run faster? One block of a model, by tokens.

Hardware works in tiles, so a schedule whose counts are such multiples might be faster at the same
cost. That would be worth an option of `schedule_for` only if a block's time for each token is
lower there than between.
Command: python -m benchmarks.speed.counts (a GPU).
"""

from __future__ import annotations

from functools import partial
from statistics import fmean

import torch

from benchmarks.inputs import measuring, parsed
from zerotprune.backbones import backbone
from zerotprune.clock import race, stopwatch
from zerotprune.data.models import load
from zerotprune.measure import records


def main() -> None:
    options = measuring(__doc__)
    options.add_argument("--model", default="deit_small_patch16_224")
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--tokens", type=int, nargs=2, default=(168, 200), help="from, to")
    options.add_argument("--rounds", type=int, default=15)
    chosen = parsed(options)
    vit = backbone(load(chosen.model).to(chosen.device, torch.bfloat16))
    torch.manual_seed(0)
    first, last = chosen.tokens
    x = torch.randn(chosen.batch, last, vit.geometry.dim, device=chosen.device).bfloat16()
    counts = range(first, last + 1)
    calls = [partial(vit.blocks[0], x[:, :count].contiguous()) for count in counts]
    with torch.inference_mode():
        *_, timings = race(calls, chosen.rounds, stopwatch(chosen.device))
    milliseconds, rows = dict[int, float](), list[dict[str, object]]()
    for count, seconds in zip(counts, timings, strict=True):
        milliseconds[count] = 1e3 * seconds.median
        rows.append({
            "table": "counts", "model": chosen.model, "measure": "one block",
            "name": f"{count} tokens", "batch": chosen.batch, "precision": "bfloat16",
            "mode": "eager", "latency_ms": round(milliseconds[count], 4),
            "latency_spread_ms": round(1e3 * seconds.spread, 4),
        })  # fmt: skip
    records.append(chosen.csv, rows)
    per_image = {count: 1e3 * took / count for count, took in milliseconds.items()}
    for step in (8, 16):
        on = fmean(per_image[count] for count in counts if count % step == 0)
        off = fmean(per_image[count] for count in counts if count % step)
        print(f"multiples of {step}: {on:.3f} µs for each token of the batch, others {off:.3f}")
    print({count: round(took, 4) for count, took in milliseconds.items()})


if __name__ == "__main__":
    main()
