"""How long does a search take? The paper's took 3.8 hours on an A100 for 2,000 settings.

Ours, for a model of DeiT-S's size: 2,000 trials on 1,024 images, with all that belongs to a
trial (drawing a schedule, storing it), in less than five minutes on an H200. Weights and images
are random, which time does not see.
Command: python -m benchmarks.search.duration (a GPU).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.inputs import measuring, parsed
from zerotprune import ZeroTPrune
from zerotprune.backbones import backbone
from zerotprune.clock import now
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure.speed import noise
from zerotprune.search.objective import Objective, Stack
from zerotprune.search.session import WorkerJob, run_workers
from zerotprune.search.storage import StudyLocation, open_study
from zerotprune.search.study import SearchConfig, read_trials, run_trials
from zerotprune.search.surface import surface_of

MEMORY = 20e9  # bytes, for what all trials share


def main() -> None:
    options = measuring(__doc__)
    add = options.add_argument
    add("--model", default="deit_small_patch16_224")
    add("--trials", type=int, default=2000)
    add("--images", type=int, default=1024)
    add("--batch", type=int, default=512)
    add("--workers", type=int, default=1)
    add("--cost", type=float, default=0.65, help="share of the unpruned model's compute")
    add("--precision", default="bfloat16" if torch.cuda.is_available() else "float32")
    chosen = parsed(options)
    seconds = timed(chosen)
    per_trial = seconds / chosen.trials
    row = {"table": "search speed", "model": chosen.model, "images": chosen.images,
           "measure": "a trial", "name": f"{chosen.trials} trials, {chosen.workers} workers",
           "batch": chosen.batch, "precision": chosen.precision,
           "latency_ms": round(1e3 * per_trial, 2)}  # fmt: skip
    records.append(chosen.csv, [row])
    print(f"{chosen.trials} trials on {chosen.images} images: {seconds:.0f} s, "
          f"{1e3 * per_trial:.1f} ms each")  # fmt: skip


def timed(chosen: argparse.Namespace) -> float:
    """Return the seconds that all trials take, with model and images in memory."""
    precision: torch.dtype = getattr(torch, chosen.precision)
    model = load(chosen.model).to(chosen.device, precision)
    images = noise(model, chosen.images, chosen.device, precision)
    stack, method = Stack(list(images.split(chosen.batch)), None), ZeroTPrune()
    surface = surface_of(backbone(model).geometry, method)
    config = SearchConfig(chosen.trials, chosen.cost * surface.unpruned, "kl")
    fingerprint = {"what": "a measurement of time"}
    with tempfile.TemporaryDirectory() as folder:
        location = StudyLocation(str(Path(folder, "trials.db")))
        started = now(chosen.device)
        study = open_study(location, fingerprint, config.directions)
        if chosen.workers == 1:
            run_trials(study, config, surface, Objective(model, method, stack, MEMORY))
        else:
            job = WorkerJob({"name": chosen.model}, chosen.device, precision, method, config,
                            location, fingerprint, MEMORY / chosen.workers, threads=1)  # fmt: skip
            run_workers(job, stack, chosen.workers, study, lambda trials: None)
        seconds = now(chosen.device) - started
        assert len(read_trials(study, config)) == chosen.trials
    return seconds


if __name__ == "__main__":
    main()
