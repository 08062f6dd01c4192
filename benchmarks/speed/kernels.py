"""The kernels decide as the reference does: the same tokens on real images, the same accuracy.

In float32 the two differ by rounding alone, so only ties may fall otherwise. In bfloat16 the same
holds of the first stage; the attention of a block that scores is rounded at other places, so that
later stages see slightly different tokens. Accuracy must not suffer.
Command: python -m benchmarks.speed.kernels --shared DIR (a GPU).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.inputs import MODELS, REPORT, Bench, measuring_images, parsed
from zerotprune import Schedule, gmacs, prune_, schedule_for, trace
from zerotprune.measure import records
from zerotprune.measure.accuracy import Mean
from zerotprune.scoring.scorer import Backend
from zerotprune.shapes import Batch


def main() -> None:
    chosen = parsed(measuring_images(__doc__))
    for name in MODELS:
        bench = Bench(name, chosen)
        model, batches = bench.model, bench.batches(REPORT)
        schedules = {
            "ablation-is": Schedule.preset("ablation-is"),
            "fold @ 0.6": schedule_for(model, cost=0.6, method="fold"),
        }
        for precision in (torch.float32, torch.bfloat16, torch.float16):
            for named, schedule in schedules.items():
                rows = measured(model.to(precision), schedule, batches, chosen.device, precision)
                about = {"model": name, "batch": chosen.batch, "schedule": named}
                records.append(chosen.csv, [row | about for row in rows])
                for row in rows:
                    print(name, named, *row.values(), sep=" | ", flush=True)


def measured(
    model: nn.Module, schedule: Schedule, batches: list[Batch], device: str, precision: torch.dtype
) -> list[dict[str, object]]:
    """Return a row for the first stage, which sees exactly the same tokens, and one for all
    stages."""
    hits: dict[Backend, list[bool]] = {"reference": [], "auto": []}
    same: dict[str, list[bool]] = {"first stage": [], "all stages": []}
    for images, labels, _ in batches:
        images = images.to(device, precision)
        fates: dict[Backend, list[Tensor]] = {}
        for backend in hits:
            prune_(model, schedule, backend=backend)
            with torch.inference_mode():
                best = model(images).argmax(dim=-1).cpu()
            hits[backend] += (best == labels).tolist()
            fates[backend] = [stage.fate for stage in trace(model, images)]
        equal = [a == b for a, b in zip(fates["reference"], fates["auto"], strict=True)]
        same["first stage"] += equal[0].all(dim=1).tolist()
        same["all stages"] += torch.cat(equal, dim=1).all(dim=1).tolist()
    pairs = zip(hits["auto"], hits["reference"], strict=True)
    change, error = Mean.of([float(one) - float(other) for one, other in pairs], scale=100)
    return [
        {
            "table": "kernels",
            "data": REPORT,
            "images": len(equals),
            "measure": "top1; change against the reference",
            "name": f"kernels against reference, {scope}",
            "gmacs": round(gmacs(model), 6),
            "top1": round(100 * sum(hits["auto"]) / len(equals), 3),
            "change": round(change, 3),
            "change_error": round(error, 3),
            "same_tokens": round(100 * sum(equals) / len(equals), 3),
            "precision": str(precision).removeprefix("torch."),
        }
        for scope, equals in same.items()
    ]


if __name__ == "__main__":
    main()
