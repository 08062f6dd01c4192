"""`zerotprune finetune`: train a model while its tokens are pruned, and write its weights."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from rich.console import Console

from ..data import weights
from ..finetune.recipe import Recipe
from ..finetune.session import (
    Session,
    TrainingConfig,
    checkpoint_beside,
    keep_others_out,
    open_session,
    trained_method,
)
from ..finetune.training import EpochStats
from ..methods import name_of, resolve
from ..pruning import gmacs, prune_
from ..safety.files import check_writable
from ..saving import is_saved
from ..schedule import Schedule
from ..shapes import Precision
from .checks import Written
from .console import console_for, left_out, print_path, progress_bar
from .options import (
    DATA,
    BatchCount,
    BudgetOptions,
    Flag,
    InputName,
    Limit,
    MethodName,
    ModelName,
    ModelOptions,
    Seed,
    Workers,
    preset_or_file,
    resolve_device,
)

TRAINING = Group("Training", sort_key=3)
_TRAIN = (
    "The images to learn from. A folder of class folders, tar shards, hf:DATASET, or pets:FOLDER "
    "and the like."
)
_VAL = "The images to validate on after every epoch."
_TEACHER = (
    "Weights of an unpruned teacher of the same architecture, or a model's name. Default: the "
    "model itself before training, unless its head is new or nothing is pruned."
)
#: steps between updates of the progress bar: reading the loss from a GPU waits for the GPU
_STEPS_BETWEEN_UPDATES = 10


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class TrainingOptions:
    """How to read the images."""

    batch: BatchCount = 64
    "Images at a time, in each process."
    workers: Workers = 2
    "Processes that decode images."
    limit: Limit | None = None
    "Use at most this many images of either data set, spread evenly: for a first try."
    strict: Flag = False
    "Stop at the first image that cannot be read. Default: name it and leave it out."


def finetune(
    model: ModelName,
    train: Annotated[InputName, Parameter(group=DATA, help=_TRAIN)],
    val: Annotated[InputName, Parameter(group=DATA, help=_VAL)],
    *,
    out: Annotated[Path, Written(_files)],
    budget: BudgetOptions = BudgetOptions(),
    method: MethodName | None = None,
    recipe: Annotated[Recipe, Parameter(name="*", group=TRAINING)] = Recipe(),
    teacher: Annotated[InputName | None, Parameter(group=TRAINING, help=_TEACHER)] = None,
    frozen: Annotated[bool, Parameter(group=TRAINING, negative=())] = False,
    seed: Annotated[Seed, Parameter(group=TRAINING)] = 0,
    precision: Annotated[Precision, Parameter(group=TRAINING)] = "float32",
    loading: ModelOptions = ModelOptions(),
    reading: TrainingOptions = TrainingOptions(),
) -> None:
    """Train a model while its tokens are pruned; write its weights with their schedule.

    With --cost 1 nothing is pruned; without a budget, a saved model is pruned as it was saved. If
    the data has other classes than the model, the model gets a new head. Every epoch is saved
    beside --out: after an interruption, the same command continues and ends with the same weights.
    Under torchrun, each process trains on its share.

    Example: `zerotprune finetune deit_tiny_patch16_224 train val --cost 0.6 --out new.safetensors`

    Parameters
    ----------
    out
        The weights, a .safetensors file. `evaluate --weights` reads the schedule from it.
    frozen
        Train only new parameters: a new head, the method's weights; the head if there are none.
    seed
        For the order of images, augmentation and new parameters.
    precision
        What the model computes in; its weights stay float32.
    """
    if not budget.options and is_saved(model) and preset_or_file(model, method).stages:
        budget = replace(budget, schedule=model)
    _check(budget, method, out)
    console = console_for()
    config = TrainingConfig(
        model=model,
        loading=loading.load_kwargs(model),
        train=train,
        val=val,
        budget=budget.options,
        solve=lambda network, images: budget.solve(
            network,
            method if budget.schedule is not None else trained_method(method),
            lambda: images,
            partial(console.print, soft_wrap=True),
        ),
        method=method,
        recipe=recipe,
        teacher=teacher,
        frozen=frozen,
        seed=seed,
        precision=precision,
        device=resolve_device(loading.device),
        batch=reading.batch,
        workers=reading.workers,
        limit=reading.limit,
        strict=reading.strict,
    )
    leads = os.environ.get("RANK", "0") == "0"
    with keep_others_out(out) if leads else nullcontext():
        _run(config, out, console)


def _run(config: TrainingConfig, out: Path, console: Console) -> None:
    session = open_session(config, checkpoint_beside(out), left_out(console))
    checkpoint, trainer = session.checkpoint, session.trainer
    if session.leads and session.overlap:
        console.print(
            f"{session.overlap} of the images to validate on are also trained on: top-1 will be "
            "too high",
            style="yellow",
        )
    if session.leads and checkpoint.epochs:
        line = f"continuing after epoch {checkpoint.epochs} of {config.recipe.epochs}"
        console.print(line, soft_wrap=True)
    session.measure_before()
    _train(session, console)
    trained = trainer.trained()
    schedule = session.final_schedule(trained)
    if schedule != trainer.schedule:
        checkpoint.history[-1]["top1"] = session.measure(prune_(trained, schedule))
    if session.leads:
        weights.save(out, trained, schedule, session.metadata())
        checkpoint_beside(out).unlink(missing_ok=True)
        console.print(_summarize(session, schedule), soft_wrap=True)
        print_path(console, "written", out)


def _files(out: Path) -> list[Path]:
    """Return the files that a run writes: the weights, and its checkpoint until it ends."""
    return [out, checkpoint_beside(out)]


def _check(budget: BudgetOptions, method: str | None, out: Path) -> None:
    budget.check()
    if not budget.options:
        raise ValueError("give a budget, such as --cost 0.6; with --cost 1 nothing is pruned")
    if method is not None:
        resolve(method)
    weights.check_name(out)
    check_writable(out)
    check_writable(checkpoint_beside(out))


def _train(session: Session, console: Console) -> None:
    checkpoint, recipe, feed = session.checkpoint, session.config.recipe, session.feed
    started, num_steps = time.perf_counter(), 0
    with progress_bar(console, disable=not session.leads) as progress:
        bar = progress.add_task(
            "training",
            total=recipe.epochs * feed.steps,
            completed=checkpoint.epochs * feed.steps,
            note="",
        )

        def advance(epoch: int, stats: EpochStats) -> None:
            nonlocal num_steps
            num_steps += 1
            progress.advance(bar)
            if num_steps % _STEPS_BETWEEN_UPDATES == 1:
                rate = num_steps * feed.batch * feed.world / (time.perf_counter() - started)
                note = (
                    f"epoch {epoch + 1}, loss {stats.loss:.3f}, top-1 {stats.top1:.1f} %, "
                    f"{rate:.0f} images/s"
                )
                progress.update(bar, note=note)

        def report(row: dict[str, float]) -> None:
            if session.leads:
                line = (
                    f"epoch {row['epoch']:.0f}: loss {row['loss']:.4f}, top-1 {row['top1']:.2f} % "
                    f"on {session.config.val}, {row['seconds']:.1f} s"
                )
                console.print(line, soft_wrap=True)

        try:
            session.run(advance, report)
        except KeyboardInterrupt:
            rest = "run the same command to continue" if checkpoint.epochs else "nothing is saved"
            raise KeyboardInterrupt(
                f"stopped after {checkpoint.epochs} of {recipe.epochs} epochs: {rest}"
            ) from None


def _summarize(session: Session, schedule: Schedule) -> str:
    before, history = session.checkpoint.before, session.checkpoint.history
    pruned = f"{name_of(schedule.method)}, " if schedule.stages else "unpruned, "
    cost = ""
    if not schedule.method.adaptive:
        cost = f"{gmacs(session.trainer.model, schedule):.3g} GMACs: "
    parts = [
        f"{text} {before[key]:.2f} %"
        for key, text in (("unpruned", "unpruned"), ("before", "before training"))
        if key in before
    ]
    parts.append(f"now {history[-1]['top1']:.2f} %")
    seconds = sum(row["seconds"] for row in history)
    return f"{pruned}{cost}top-1 {', '.join(parts)}; {seconds:.0f} s of training"
