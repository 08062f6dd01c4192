"""The kernels decide as the reference does: the same tokens on real pictures, the same accuracy.

In float32 the two differ by rounding alone, so only ties may fall otherwise. In bfloat16 the
attention of a block that scores is rounded at other places as well, so that later stages see
slightly different tokens; accuracy must not suffer.
Command: python benchmarks/kernels.py --shared DIR (a GPU).
"""

from __future__ import annotations

from typing import Any

import torch
from table import MODELS, decoded, options
from torch import Tensor

from zerotprune import Schedule, gmacs, prune_, records, trace
from zerotprune.evaluate import paired_difference
from zerotprune.models import load


def main() -> None:
    chosen = options(__doc__)
    for name, weights in MODELS.items():
        model = load(name, weights=chosen.shared / "weights" / weights).to(chosen.device)
        held = decoded(model, chosen.shared, chosen.batch, chosen.limit)
        for precision in (torch.float32, torch.bfloat16):
            model = model.to(precision)
            hits: dict[Any, list[bool]] = {"reference": [], "auto": []}
            same: list[bool] = []
            for images, labels, _ in held:
                images = images.to(chosen.device, precision)
                fates = {}
                for backend in ("reference", "auto"):
                    prune_(model, Schedule.preset("ablation-is"), backend=backend)
                    with torch.inference_mode():
                        best = model(images).argmax(dim=-1).cpu()
                    hits[backend] += (best == labels).tolist()
                    fates[backend] = [stage.fate for stage in trace(model, images)]
                same += agreement(fates["reference"], fates["auto"])
            pairs = zip(hits["auto"], hits["reference"], strict=True)
            change, error = paired_difference([int(one) - int(other) for one, other in pairs])
            row = {
                "table": "kernels",
                "model": name,
                "data": "imagenet/report",
                "pictures": len(same),
                "measure": "top1; change against the reference",
                "name": "kernels against reference",
                "schedule": "ablation-is",
                "gmacs": round(gmacs(model), 6),
                "top1": round(100 * sum(hits["auto"]) / len(same), 3),
                "change": round(change, 3),
                "change_error": round(error, 3),
                "same_tokens": round(100 * sum(same) / len(same), 3),
                "batch": chosen.batch,
                "precision": str(precision).removeprefix("torch."),
            }
            records.append(chosen.csv, [row])
            print(" | ".join(str(value) for value in row.values()), flush=True)


def agreement(one: list[Tensor], other: list[Tensor]) -> list[bool]:
    """For each picture: does every patch have the same fate at every stage?"""
    stages = [(a == b).all(dim=1) for a, b in zip(one, other, strict=True)]
    found: list[bool] = torch.stack(stages).all(dim=0).tolist()
    return found


if __name__ == "__main__":
    main()
