"""Transfer to pets and flowers: off the shelf (Table 6 of the paper), trained (Fig. 6, Table 12).

The paper's Table 6 (DeiT-T, seven sets, 0.90 G, off the shelf) has Zero-TPrune ahead of ToMe on all
sets and ahead of ATS on five: ATS wins DTD and Cars. Its Table 12 (DeiT-T, ImageNet) has it within
a point of DynamicViT and A-ViT, trained, at 0.9 and 0.8 G. Ours: DeiT-Ti and ViT-Ti are fine-tuned
on 15 images of each of 37 pets, or 6 of each of 102 flowers, and measured on as many others, with
three seeds. Each is pruned off the shelf to 0.90 and 0.65 G, then trained while pruned, with the
unpruned model as its teacher; Zero-TPrune is trained by I-stages alone, as in the paper. Expected:
at 0.65 G Fold off the shelf is within 0.5 points of the best trained rival, and Fold trained is
ahead of all.
Command: python -m benchmarks.tables.transfer --shared DIR --data pets --jobs 6 (and once more with
--data flowers; minutes each on a GPU), then python -m benchmarks.report. To try it on a CPU:
--limit 60 --epochs 1 1 --seeds 1 --models deit_tiny_patch16_224 --methods fold tome.
Results: docs/results-appendix.md.
"""

from __future__ import annotations

import argparse
import copy
import queue
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from benchmarks.inputs import MODELS, decoded, measuring_images, parsed, real_model, spread
from benchmarks.tables.cached_images import CachedImages, load_cached
from benchmarks.tables.table import within_reach
from zerotprune import methods, schedule_for
from zerotprune.backbones import backbone
from zerotprune.finetune.forms import form_for
from zerotprune.finetune.recipe import Recipe
from zerotprune.finetune.training import Trainer
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED, Contender, Result, Setting, compare
from zerotprune.schedule import Schedule
from zerotprune.shapes import Batch
from zerotprune.surgery import restore_

TABLE = "transfer"
DATA = ("pets", "flowers")
GMACS = (0.9, 0.65)
#: All run off the shelf, some are trained: the paper's form of Zero-TPrune is not, since a trained
#: one has I-stages alone. The last two learn what to drop: untrained, their choice means nothing.
METHODS = ("fold", "tome", "zero-tprune", "zero-tprune-paper", "ats", "dynamicvit", "a-vit")
TRAINED = ("fold", "tome", "zero-tprune", "dynamicvit", "a-vit")
OFF_THE_SHELF, AFTERWARDS = "off the shelf", "trained"  # the rows' `mode`

Row = dict[str, object]


@dataclass(frozen=True)
class Job:
    """One model, set and seed: fine-tune, prune, and train while pruned."""

    model: str
    data: str
    seed: int
    chosen: argparse.Namespace

    def folder(self, part: str) -> Path:
        shared: Path = self.chosen.shared
        return shared / self.data / part

    def about(self) -> Row:
        return {"table": TABLE, "model": self.model, "data": self.data, "seed": self.seed,
                "batch": self.chosen.batch, "precision": "float32",
                "images_per_second": ""}  # fmt: skip  # many runs share the device


def main() -> None:
    options = measuring_images(__doc__)
    options.set_defaults(batch=64)
    options.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    options.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    options.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options.add_argument("--epochs", type=int, nargs=2, default=(50, 30), metavar=("FIRST", "THEN"),
                         help="of the unpruned model, and after pruning")  # fmt: skip
    options.add_argument("--lr", type=float, nargs=2, default=(1e-4, 5e-5))
    options.add_argument("--new-lr", type=float, default=2e-3)
    chosen = parsed(options)
    jobs = [
        Job(model, data, seed, chosen)
        for seed in range(chosen.seeds)
        for model in chosen.models
        for data in chosen.data
    ]
    context = get_context("spawn")  # CUDA does not survive a fork
    with context.Manager() as manager, ProcessPoolExecutor(chosen.jobs, context) as pool:
        rows: queue.Queue[Row] = manager.Queue()
        running = [pool.submit(run, job, rows.put) for job in jobs]
        while not all(future.done() for future in running) or not rows.empty():
            with suppress(queue.Empty):  # each row is kept as it comes: a run may be cut short
                records.append(chosen.csv, [rows.get(timeout=0.5)])
        for future in running:
            future.result()


def run(job: Job, keep: Callable[[Row], None]) -> None:
    """Keep and print every row of a job."""
    torch.set_num_threads(max(1, torch.get_num_threads() // job.chosen.jobs))
    for row in _rows(job):
        keep(row)
        cells = ("gmacs", "top1", "change", "train_seconds")
        print(job.model, job.data, job.seed, row["name"], row["mode"],
              *(f"{row[cell]}" for cell in cells), sep=" | ", flush=True)  # fmt: skip


def _rows(job: Job) -> Iterator[Row]:
    chosen, seed = job.chosen, job.seed
    base = real_model(job.model, chosen)
    # Jobs run side by side: workers of their own would only be in each other's way.
    tests = decoded(base, job.folder("test"), 100, chosen.limit, workers=0)
    train = decoded(base, job.folder("train"), 100, chosen.limit, workers=0)
    some = spread(train, 128).to(chosen.device)
    images = load_cached(base, job.folder("train"), chosen.device, chosen.batch, chosen.limit, seed)
    set_seed(seed)
    backbone(base).reset_head_(int(images.labels.max()) + 1)
    head = backbone(base).head_parameters()
    base, seconds = _trained(job, base, Schedule(), images, 0, new=head)
    restore_(base)
    contenders = [UNPRUNED, *_contenders(job, base, some)]
    results = compare(base, contenders, tests, setting=_setting(job))
    for result in results:
        trained = seconds if result.contender is UNPRUNED else 0.0
        yield _row(job, result, results[0], OFF_THE_SHELF, trained)
    for contender in contenders[1:]:
        if contender.name.partition(" @ ")[0] in TRAINED:
            try:
                yield _after(job, base, contender, images, tests, some, results[0])
            except Exception:  # hours of other runs are not lost to one
                traceback.print_exc()


def _contenders(job: Job, model: nn.Module, some: Tensor) -> Iterator[Contender]:
    return within_reach(
        (
            f"{name} @ {gmacs:g} G",
            partial(schedule_for, model, gmacs=gmacs, method=name, images=some),
        )
        for gmacs in GMACS
        for name in job.chosen.methods
    )


def _after(
    job: Job, base: nn.Module, contender: Contender, images: CachedImages, tests: list[Batch],
    some: Tensor, reference: Result,
) -> Row:  # fmt: skip
    """Train a copy of the model while it is pruned, and measure it."""
    gmacs, schedule = float(contender.name.split()[-2]), contender.schedule
    method = form_for(schedule.method).budgeted(schedule.method)
    if method != schedule.method:  # Zero-TPrune is trained, and then used, without its S-stage
        schedule = schedule_for(restore_(base), gmacs=gmacs, method=method, images=some)
    model, seconds = _trained(job, copy.deepcopy(base), schedule, images, 1, teacher=base)
    if schedule.method.adaptive:  # what an image needs has changed with the weights
        method = methods.resolve(schedule.method.name)
        schedule = schedule_for(restore_(model), gmacs=gmacs, method=method, images=some)
    after = Contender(contender.name, schedule)
    (result,) = compare(model, [after], tests, setting=_setting(job))
    result.kl.clear()  # it would be from itself
    return _row(job, result, reference, AFTERWARDS, seconds)


def _setting(job: Job) -> Setting:
    # To compile kernels for every count of tokens would take longer than these few images.
    return Setting(job.chosen.device, backend="reference")


def _trained(
    job: Job, model: nn.Module, schedule: Schedule, images: CachedImages, phase: int,
    teacher: nn.Module | None = None, new: list[nn.Parameter] | None = None,
) -> tuple[nn.Module, float]:  # fmt: skip
    """Return the trained model and the seconds it took."""
    chosen = job.chosen
    recipe = Recipe(chosen.epochs[phase], chosen.lr[phase], chosen.new_lr)
    cpu = chosen.device == "cpu"
    accelerator = Accelerator(cpu=cpu, mixed_precision="no" if cpu else "bf16")
    trainer = Trainer(model, schedule, recipe, accelerator, steps=images.steps, teacher=teacher,
                      new=new or [], seed=job.seed)  # fmt: skip
    started = time.perf_counter()
    for number in range(recipe.epochs):
        trainer.epoch(number, images.epoch(number))
    if not cpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    accelerator.free_memory()
    return trainer.trained(), seconds


def _row(job: Job, result: Result, reference: Result, mode: str, seconds: float) -> Row:
    return {**records.row(result, reference, "float32"), **job.about(), "mode": mode,
            "train_seconds": round(seconds, 1) or ""}  # fmt: skip


if __name__ == "__main__":
    main()
