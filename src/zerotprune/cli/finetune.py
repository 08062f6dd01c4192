"""`zerotprune finetune`: train a model while its tokens are pruned, and write its weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from rich.markup import escape

from ..data import weights
from ..files import check_writable
from ..finetune.checkpoint import Checkpoint, checkpoint_beside
from ..finetune.recipe import Recipe
from ..finetune.tally import Tally
from ..methods import name_of, resolve
from ..pruning import gmacs, prune_
from ..schedule import Schedule
from .console import progress_bar
from .finetuning import Asked, Finetuning, TrainingOptions, prepare
from .options import DATA, BudgetOptions, MethodName, ModelName, ModelOptions, Precision

TRAINING = Group("Training", sort_key=3)
_FOLDER = "A folder of class folders, tar shards, hf:DATASET, or pets:FOLDER and its like."
_TEACHER = (
    "A file of weights for an unpruned teacher of the same kind, or a model's name. Default: the "
    "model itself as it is before, unless its head is new or nothing is pruned."
)
#: steps after which the bar is told anew: to ask a GPU for a number is to wait for it
_NOW_AND_THEN = 10


def finetune(
    model: ModelName,
    train: Annotated[str, Parameter(group=DATA, help=f"The images to learn from. {_FOLDER}")],
    val: Annotated[str, Parameter(group=DATA, help="Those to validate on after every epoch.")],
    *,
    out: Path,
    budget: BudgetOptions | None = None,
    method: MethodName | None = None,
    recipe: Annotated[Recipe | None, Parameter(name="*", group=TRAINING)] = None,
    teacher: Annotated[str | None, Parameter(group=TRAINING, help=_TEACHER)] = None,
    frozen: Annotated[bool, Parameter(group=TRAINING, negative=())] = False,
    seed: Annotated[int, Parameter(group=TRAINING)] = 0,
    precision: Annotated[Precision, Parameter(group=TRAINING)] = "float32",
    loading: ModelOptions | None = None,
    reading: TrainingOptions | None = None,
) -> None:
    """Train a model while its tokens are pruned; write weights that know their schedule.

    With --cost 1 nothing is pruned. Data of other classes than the model's gets a new head. Every
    epoch is kept beside --out: the same command again goes on where it was stopped or killed, and
    comes to the same weights. Under torchrun, every process trains on its share.

    Example: `zerotprune finetune deit_tiny_patch16_224 train val --cost 0.6 --out new.safetensors`

    Parameters
    ----------
    out
        The weights, a .safetensors file: --weights of `evaluate` takes its schedule along.
    frozen
        Train only what is new: a new head, the method's own weights; else the head.
    seed
        Of the order, the augmentation and all that is new.
    precision
        In which the model computes; its weights stay float32.
    """
    budget, loading = budget or BudgetOptions(), loading or ModelOptions()
    asked = Asked(model, train, val, budget, method, recipe or Recipe(), teacher, frozen, seed,
                  precision)  # fmt: skip
    _check(asked, out)
    made = prepare(asked, loading, reading or TrainingOptions(), checkpoint_beside(out))
    held = made.held
    if held.epochs:
        made.say(f"goes on after epoch {held.epochs} of {asked.recipe.epochs}")
    _measure_before(made, held)
    _train(made, held)
    trained = made.session.trainer.trained()
    schedule = made.settled(trained)
    if schedule != made.session.trainer.schedule:
        held.history[-1]["top1"] = made.session.measure(prune_(trained, schedule))
    if made.leads:
        weights.save(out, trained, schedule, made.about())
        checkpoint_beside(out).unlink(missing_ok=True)
        _report(made, held, schedule, out)


def _check(asked: Asked, out: Path) -> None:
    asked.budget.check()
    if not asked.budget.given:
        raise ValueError("give a budget, such as --cost 0.6; with --cost 1 nothing is pruned")
    if asked.method is not None:
        resolve(asked.method)
    weights.check_name(out)
    check_writable(out)
    check_writable(checkpoint_beside(out))


def _measure_before(made: Finetuning, held: Checkpoint) -> None:
    """Top-1 of the unpruned model and of the pruned one before training; a new head knows
    nothing."""
    if held.before or made.fresh_head:
        return
    if made.unpruned is not None:
        held.before["unpruned"] = made.session.measure(made.unpruned)
    held.before["before"] = made.session.measure(made.session.trainer.trained())


def _train(made: Finetuning, held: Checkpoint) -> None:
    session, epochs = made.session, made.session.trainer.recipe.epochs
    steps, started, seen = session.feed.steps, time.perf_counter(), 0
    with progress_bar(made.console, disable=not made.leads) as progress:
        bar = progress.add_task("training", total=epochs * steps, completed=held.epochs * steps,
                                note="")  # fmt: skip

        def advance(epoch: int, so_far: Tally) -> None:
            nonlocal seen
            seen += 1
            progress.advance(bar)
            if seen % _NOW_AND_THEN == 1:
                rate = seen * session.feed.batch * made.world / (time.perf_counter() - started)
                progress.update(bar, note=f"epoch {epoch + 1}, loss {so_far.loss:.3f}, "
                                f"top-1 {so_far.top1:.1f} %, {rate:.0f} images/s")  # fmt: skip

        def tell(row: dict[str, float]) -> None:
            made.say(f"epoch {row['epoch']:.0f}: loss {row['loss']:.4f}, top-1 {row['top1']:.2f} % "
                     f"on {made.asked.val}, {row['seconds']:.1f} s")  # fmt: skip

        try:
            session.run(held, advance, tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped after {held.epochs} of {epochs} epochs: "
                + ("the same command goes on from there" if held.epochs else "nothing is kept yet")
            ) from None


def _report(made: Finetuning, held: Checkpoint, schedule: Schedule, out: Path) -> None:
    model = made.session.trainer.model
    pruned = f"{name_of(schedule.method)}, " if schedule.stages else "unpruned, "
    cost = "" if schedule.method.adaptive else f"{gmacs(model, schedule):.3g} GMACs: "
    parts = [
        f"{text} {held.before[key]:.2f} %"
        for key, text in (("unpruned", "unpruned"), ("before", "before training"))
        if key in held.before
    ]
    parts.append(f"now {held.history[-1]['top1']:.2f} %")
    made.say(f"{pruned}{cost}top-1 {', '.join(parts)}; "
             f"{sum(row['seconds'] for row in held.history):.0f} s of training")  # fmt: skip
    made.console.print(f"written: [bold]{escape(str(out))}[/bold]", highlight=False)
