"""What int8 costs in accuracy: files in int8 beside the same files in float32, image by image.

Expected: at most a point of top-1, on CPUs with VNNI and without it.
Command: python -m benchmarks.speed.int8 --shared DIR (a CPU); for OpenVINO as on a CPU without VNNI
with ONEDNN_MAX_CPU_ISA=AVX2 in the environment. What it gave: docs/deploy.md.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch
from torch import Tensor

from benchmarks.inputs import MODELS, REPORT, TUNE, add_shared, decoded, parser, real_model, say
from zerotprune import prune_
from zerotprune.export import target_named
from zerotprune.export.target import Run
from zerotprune.export.writing import FilePrecision, Job, write_model

IMAGES, CALIBRATION = 1000, 100
COSTS = (1.0, 0.6)  # unpruned, and Fold


def main() -> None:
    known = parser(__doc__)
    add_shared(known)
    add = known.add_argument
    add("--to", nargs="+", default=["onnx", "openvino"], choices=["onnx", "openvino"])
    add("--full-range", action="store_true", help="weights of 8 bits")
    chosen = known.parse_args()
    torch.set_num_threads(1)
    for model in MODELS:
        for to in chosen.to:
            measure(model, to, chosen)


def measure(name: str, to: str, chosen: argparse.Namespace) -> None:
    """Print a line for the unpruned model and one for Fold."""
    model, target = real_model(name, chosen), target_named(to)
    calibration, _ = images_of(model, chosen.shared / TUNE, CALIBRATION)
    images, labels = images_of(model, chosen.shared / REPORT, chosen.limit or IMAGES)
    precisions: tuple[FilePrecision, ...] = ("float32", "int8")
    job = Job(target, 1, precisions, calibration, 1, lambda line: None, chosen.full_range)
    for cost in COSTS:
        if cost < 1:
            prune_(model, cost=cost)
        with TemporaryDirectory() as folder:
            files = write_model(job, model, Path(folder, "files", f"model{target.ending}"))
            (answers, before), (changed, after) = (
                answered(target.load(files[precision], 1), images) for precision in precisions
            )
        right, still = (answers == labels).double(), (changed == labels).double()
        error = (still - right).std() / len(images) ** 0.5
        say(
            f"{platform.processor() or platform.machine()} | {to} | {name} | cost {cost} | "
            f"top-1 {100 * right.mean():.1f} → {100 * still.mean():.1f}, "
            f"{100 * (still - right).mean():+.1f} ± {100 * error:.1f} | "
            f"equal answers {(answers == changed).double().mean():.1%} | "
            f"{1e3 * before:.1f} → {1e3 * after:.1f} ms of one core"
        )


def images_of(model: torch.nn.Module, folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return images spread evenly over a folder, and their labels."""
    batches = decoded(model, folder, limit=count)
    return torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])


def answered(run: Run, images: Tensor) -> tuple[Tensor, float]:
    """Return the answer to each image, and the median time of the processor for one."""
    answers, seconds = [], []
    for image in images.split(1):
        start = process_time()
        answers.append(run(image).argmax(dim=1))
        seconds.append(process_time() - start)
    return torch.cat(answers), sorted(seconds)[len(seconds) // 2]


if __name__ == "__main__":
    main()
