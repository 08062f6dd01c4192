"""What each kernel gains in a compiled model over the next simpler way: 5 %, or it goes.

Fold at 0.6 of the cost as a CUDA graph in bfloat16, with all kernels and with one of them replaced
by what torch makes of the reference; all cases in turn. The share is the time with all kernels over
the time without one: 0.95 or less means that the kernel pays.
Command: python -m benchmarks.speed.kernel_gain (a GPU).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.inputs import measuring, parsed, say
from zerotprune import schedule_for
from zerotprune.clock import Call, stopwatch
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure.accuracy import Contender
from zerotprune.measure.speed import SEED, Entrant, Group, Speed, noise, ready, room_for, take_turns
from zerotprune.methods import Fold
from zerotprune.scoring import backends
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.scorer import Scorer
from zerotprune.surgery import attach, sharing_copy

COST = 0.6
TABLE = "kernel gain"


class Case(NamedTuple):
    """A model, its batch, and the variants that are tried of it."""

    model: str
    size: int | None
    batch: int
    variants: tuple[str, ...]


CASES = (
    Case("deit_small_patch16_224", None, 512,
         ("all kernels", "without fold", "without merge", "without whole", "rows, not columns")),
    Case("vit_base_patch14_dinov2", 518, 32,
         ("all kernels", "without matching", "without merge", "flex attention")),
)  # fmt: skip


def main() -> None:
    known = measuring(__doc__)
    known.add_argument("--rounds", type=int, default=12)
    chosen = parsed(known)
    for case in CASES:
        started = time.perf_counter()
        rows = measured(case, chosen.device, chosen.rounds)
        records.append(chosen.csv, rows)
        say(f"{case.model}: {time.perf_counter() - started:.0f} s")


@torch.inference_mode()
def measured(case: Case, device: str, rounds: int) -> list[dict[str, object]]:
    """A row for each variant."""
    torch.manual_seed(SEED)
    model = load(case.model, size=case.size).to(device, torch.bfloat16).requires_grad_(False)
    images = noise(model, case.batch, device, torch.bfloat16)
    variants, warm = variants_of(), list[tuple[Speed, Call]]()
    backends.prepare("auto")
    usual = backends._fused["auto"]
    try:
        for name in case.variants:
            method = Fold(importance="rows") if name.startswith("rows") else Fold()
            schedule = schedule_for(model, cost=COST, method=method)
            backends._fused["auto"] = variants.get(name, usual)
            speed = Speed(Entrant(Contender(name, schedule)), "graph", case.batch, "bfloat16")
            copy = attach(sharing_copy(model), schedule)
            with room_for(len(case.variants)):
                compiled = torch.compile(copy, fullgraph=True, dynamic=False)
                try:
                    call, speed.peak_memory = ready(compiled, images, "graph")
                except Exception as error:  # a compiler may fail in any way; the others go on
                    speed.failure = f"{type(error).__name__}: {str(error)[:200]}"
                    say(f"{name}: {speed.failure}")
                    continue
            warm.append((speed, call))
            say(f"{case.model}: {name} is compiled")
    finally:
        backends._fused["auto"] = usual
    take_turns(warm, rounds, stopwatch(device))
    group = Group([speed for speed, _ in warm])
    first = group.speeds[0]
    for speed in group.speeds:
        say(f"{case.model} | {speed.name} | {1e3 * speed.latency:.3f} ms | "
            f"{first.latency / speed.latency:.3f}")  # fmt: skip
    return [
        records.speed_row(speed, group)
        | {"table": TABLE, "model": case.model, "seed": SEED, "backend": "auto",
           "speedup": round(first.latency / speed.latency, 4)}
        for speed in group.speeds
    ]  # fmt: skip


def variants_of() -> Mapping[str, Scorer]:
    """Scorers that do one step the simpler way."""
    from zerotprune.scoring.triton import fused

    @dataclass(frozen=True)
    class WithoutFold(fused.FusedScorer):
        fold, cheapest = Scorer.fold, Scorer.cheapest

    @dataclass(frozen=True)
    class WithoutMatching(fused.FusedScorer):
        cheapest = Scorer.cheapest

    @dataclass(frozen=True)
    class WithoutMerge(fused.FusedScorer):
        merge = Scorer.merge

    @dataclass(frozen=True)
    class WithoutWhole(fused.FusedScorer):
        """Sizes as more width of q and k, as with many tokens, in the blocks between stages."""

        def output(self, part: Heads) -> Tensor:
            if part.size is None:
                return Scorer.output(self, part)
            q, k = fused.with_sizes(part.q, part.k, part.scale, part.size)
            return torch.nn.functional.scaled_dot_product_attention(q, k, part.v, scale=part.scale)

    @dataclass(frozen=True)
    class Flex(fused.FusedScorer):
        def output(self, part: Heads) -> Tensor:
            if part.size is None:
                return Scorer.output(self, part)
            from torch.nn.attention.flex_attention import flex_attention

            log = part.size.log()

            def lifted(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + log[b, j]

            out = flex_attention(part.q, part.k, part.v, score_mod=lifted, scale=part.scale)
            assert isinstance(out, Tensor)
            return out

    return {
        "without fold": WithoutFold(),
        "without matching": WithoutMatching(),
        "without merge": WithoutMerge(),
        "without whole": WithoutWhole(),
        "flex attention": Flex(),
    }


if __name__ == "__main__":
    main()
