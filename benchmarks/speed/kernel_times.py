"""Where a compiled model spends its time: every kernel, unpruned, sliced and with Fold.

A model whose speedup stays below its cost is profiled here. What slicing to the same tokens spends
too, the patch embedding above all, is no cost of Fold, and no method can save it.
Command: python -m benchmarks.speed.kernel_times (a GPU). What it gave: docs/fold.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.inputs import parser, say
from zerotprune import Schedule, schedule_for
from zerotprune.backbones import backbone
from zerotprune.data.models import load
from zerotprune.measure.speed import SEED, limit_of, noise
from zerotprune.surgery import attach

CALLS = 5


class Case(NamedTuple):
    """A model, its images, and the cost of Fold."""

    model: str
    size: int | None
    batch: int
    cost: float


CASES = (
    Case("deit_tiny_patch16_224", None, 512, 0.7),
    Case("deit_small_patch16_224", None, 64, 0.6),
    Case("vit_base_patch14_dinov2", 518, 32, 0.6),
)
VARIANTS = ("unpruned", "slicing", "fold")


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    known.add_argument("--models", nargs="+", default=[case.model for case in CASES])
    known.add_argument("--batch", type=int, help="images, in place of each model's own number")
    known.add_argument("--top", type=int, default=25, help="kernels to print")
    chosen = known.parse_args()
    for case in CASES:
        if case.model in chosen.models:
            case = case._replace(batch=chosen.batch or case.batch)
            for variant in VARIANTS:
                times = kernel_times(case, variant, chosen.device)
                total = sum(seconds for seconds, _ in times.values())
                say(f"{case.model}, {case.batch} images, {variant}: {1e3 * total:.3f} ms")
                ranked = sorted(times.items(), key=lambda entry: -entry[1][0])
                for name, (seconds, count) in ranked[: chosen.top]:
                    say(f"{1e6 * seconds:10.1f} µs {count:6.1f}× {name[:100]}")


def kernel_times(case: Case, variant: str, device: str) -> dict[str, tuple[float, float]]:
    """Return the seconds in each kernel during one call, and how often it runs."""
    torch.manual_seed(SEED)
    model = load(case.model, size=case.size).to(device, torch.bfloat16).requires_grad_(False)
    images = noise(model, case.batch, device, torch.bfloat16)
    attach(model, _schedule(model, case, variant))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    gpu = device.startswith("cuda")
    with torch.inference_mode():
        for _ in range(3):
            compiled(images)
        with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as run:
            for _ in range(CALLS):
                compiled(images)
            if gpu:
                torch.cuda.synchronize()
    return {
        event.key: (
            (event.self_device_time_total if gpu else event.self_cpu_time_total) / 1e6 / CALLS,
            event.count / CALLS,
        )
        for event in run.key_averages()
    }


def _schedule(model: torch.nn.Module, case: Case, variant: str) -> Schedule:
    if variant == "unpruned":
        return Schedule()
    schedule = schedule_for(model, cost=case.cost)
    return limit_of(schedule, backbone(model).geometry) if variant == "slicing" else schedule


if __name__ == "__main__":
    main()
