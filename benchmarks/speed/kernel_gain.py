"""What each kernel gains in a compiled model over the next simpler way: 5 %, or it goes.

Fold as a CUDA graph in bfloat16, with all kernels and with one of them replaced by what torch makes
of the reference; all cases in turn. The share is the time with all kernels over the time without
one: 0.95 or less means that the kernel pays. "without product" embeds patches by a convolution
instead of a matrix product; the unpruned model, timed both ways, tells what pruning alone gains.
Command: python -m benchmarks.speed.kernel_gain (a GPU). What it gave: docs/fold.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.inputs import measuring, parsed, say
from benchmarks.speed import served
from zerotprune import Schedule, schedule_for
from zerotprune.backbones.patch_embedding import attach_products, detach_products
from zerotprune.clock import Call
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure.accuracy import Contender
from zerotprune.measure.speed import SEED, Entrant, Group, Speed, noise, ready, take_turns
from zerotprune.methods import Fold
from zerotprune.scoring import scorer as scorers
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.scorer import Scorer
from zerotprune.surgery import attach

TABLE = "kernel gain"


class Case(NamedTuple):
    """A model, its batch, the cost, and the variants to try."""

    model: str
    size: int | None
    batch: int
    cost: float
    variants: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.model}, {self.batch} images, {self.cost:g}"


PATCHES = ("all kernels", "without product", "unpruned", "unpruned with product")
CASES = (
    Case("deit_small_patch16_224", None, 512, 0.6,
         (*PATCHES, "without fold", "without merge", "without whole", "rows, not columns")),
    Case("deit_small_patch16_224", None, 64, 0.6, PATCHES),
    Case("deit_base_patch16_224", None, 256, 0.6, PATCHES),
    Case("deit_tiny_patch16_224", None, 512, 0.7, (*PATCHES, "without merge", "without whole")),
    Case("vit_base_patch14_dinov2", 518, 32, 0.6,
         (*PATCHES, "without sampling", "without matching", "without merge", "flex attention")),
)  # fmt: skip


def main() -> None:
    known = measuring(__doc__)
    known.add_argument("--rounds", type=int, default=12)
    known.add_argument("--jobs", type=int, default=12, help="compile in so many processes at once")
    models = [*dict.fromkeys(case.model for case in CASES)]
    known.add_argument("--models", nargs="+", choices=models, default=models)
    known.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)  # one of these processes
    chosen = parsed(known)
    if chosen.serve:
        name, variant = chosen.serve
        (case,) = (case for case in CASES if case.name == name)
        with torch.inference_mode():
            served.received()  # nothing but the sign to begin
            served.serve(lambda: {"graph": compiled(case, variant, chosen.device)}, chosen.device)
        return
    cases = [case for case in CASES if case.model in chosen.models]
    names = [(case.name, variant) for case in cases for variant in case.variants]
    calls = [("benchmarks.speed.kernel_gain", ("--serve", *name), b"go") for name in names]
    started = served.start(calls, [": ".join(name) for name in names], chosen.jobs, say)
    processes = dict(zip(names, started, strict=True))
    for case in cases:
        records.append(chosen.csv, measured(case, processes, chosen.rounds))
    served.close(started)


def compiled(case: Case, variant: str, device: str) -> tuple[Call, int]:
    """Return the model with one kernel left out as a CUDA graph, and its peak memory."""
    torch.manual_seed(SEED)
    model = load(case.model, size=case.size).to(device, torch.bfloat16).requires_grad_(False)
    images = noise(model, case.batch, device, torch.bfloat16)
    scorers.prepare("auto")
    scorers._fused["auto"] = variants_of().get(variant, scorers._fused["auto"])
    attach(model, schedule(model, case, variant))
    if variant == "without product":
        detach_products(model)
    if variant == "unpruned with product":
        attach_products(model)
    return ready(torch.compile(model, fullgraph=True, dynamic=False), images, "graph")


def schedule(model: nn.Module, case: Case, variant: str) -> Schedule:
    if variant.startswith("unpruned"):
        return Schedule()
    method = Fold(importance="rows") if variant.startswith("rows") else Fold()
    return schedule_for(model, cost=case.cost, method=method)


def measured(
    case: Case, processes: Mapping[tuple[str, str], served.Served | str], rounds: int
) -> list[dict[str, object]]:
    """Return a row for each variant."""
    model, warm = load(case.model, size=case.size), list[tuple[Speed, Call]]()
    for variant in case.variants:
        process = processes[case.name, variant]
        contender = Contender(variant, schedule(model, case, variant))
        speed = Speed(Entrant(contender), "graph", case.batch, "bfloat16")
        if isinstance(process, str):
            speed.failure = process[:100]
        else:
            speed.peak_memory = process.peaks["graph"]
            warm.append((speed, served.Remote(process, "graph")))
    take_turns(warm, rounds, served.ask)
    group = Group([speed for speed, _ in warm])
    first = group.speeds[0]
    for speed in group.speeds:
        say(f"{case.name} | {speed.name} | {1e3 * speed.latency:.3f} ms | "
            f"{first.latency / speed.latency:.3f}")  # fmt: skip
    return [
        records.speed_row(speed, group)
        | {"table": TABLE, "model": case.model, "seed": SEED, "backend": "auto",
           "speedup": round(first.latency / speed.latency, 4)}
        for speed in group.speeds
    ]  # fmt: skip


def variants_of() -> Mapping[str, Scorer]:
    """Return scorers that do one step the simpler way."""
    from zerotprune.scoring.triton import fused

    @dataclass(frozen=True)
    class WithoutFold(fused.FusedScorer):
        fold, cheapest = Scorer.fold, Scorer.cheapest

    @dataclass(frozen=True)
    class WithoutSampling(fused.FusedScorer):
        sampled_attention = Scorer.sampled_attention

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
        "without sampling": WithoutSampling(),
        "without matching": WithoutMatching(),
        "without merge": WithoutMerge(),
        "without whole": WithoutWhole(),
        "flex attention": Flex(),
    }


if __name__ == "__main__":
    main()
