"""A fine-tuning made ready: the model with its head, images, teacher, schedule, checkpoint."""

from __future__ import annotations

import atexit
import copy
import json
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from cyclopts import Parameter
from rich.console import Console
from torch import Tensor, nn

from ..backbones import backbone
from ..data.images import ImageDataset, batches, open_data
from ..data.models import load, outline
from ..data.weights import weights_hash
from ..finetune.checkpoint import Checkpoint
from ..finetune.forms import form_for
from ..finetune.images import Feed, ShownImages, check_pair, seen_in_training
from ..finetune.recipe import Recipe
from ..finetune.session import Session, check_teacher
from ..finetune.training import Trainer
from ..measure import records
from ..method import Method
from ..methods import DEFAULT, resolve, to_data
from ..schedule import Schedule
from .console import console_for, left_out
from .options import DATA, BudgetOptions, Flag, ModelOptions, Precision, chosen_device

_MIXED = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class TrainingOptions:
    """How the images are read."""

    batch: int = 64
    "Images at a time, in each process."
    workers: int = 2
    "Processes that decode images."
    limit: int | None = None
    "Take only so many images of either, spread evenly: to try it out."
    strict: Flag = False
    "Stop at the first image that cannot be read; else it is named and left out."


@dataclass(frozen=True)
class Asked:
    """What a training is asked to be."""

    model: str
    train: str
    val: str
    budget: BudgetOptions
    method: str | None
    recipe: Recipe
    teacher: str | None
    frozen: bool
    seed: int
    precision: Precision


@dataclass
class Finetuning:
    """One process's part in it."""

    asked: Asked
    session: Session
    held: Checkpoint
    unpruned: nn.Module | None  # as it was before; None where that is what is trained
    fresh_head: bool
    some: Tensor  # images for methods whose cost depends on them
    console: Console

    @property
    def leads(self) -> bool:
        """Of several processes, one speaks and writes."""
        return bool(self.session.trainer.accelerator.is_main_process)

    @property
    def world(self) -> int:
        return int(self.session.trainer.accelerator.num_processes)

    def say(self, line: str) -> None:
        if self.leads:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def settled(self, trained: nn.Module) -> Schedule:
        """The schedule for the trained model: where the cost depends on the images it depends on
        the weights as well, and is set anew."""
        schedule = self.session.trainer.schedule
        if not schedule.method.adaptive or self.asked.budget.schedule is not None:
            return schedule
        return _solved(self.asked, trained, self.some, self.say) or schedule

    def about(self) -> dict[str, Any]:
        """What the file of weights says of itself."""
        return {**self.held.identity, **self.held.before, **self.held.history[-1],
                **records.surroundings()}  # fmt: skip


def prepare(
    asked: Asked, loading: ModelOptions, reading: TrainingOptions, file: Path
) -> Finetuning:
    """All that can be wrong is found here, before the first epoch."""
    accelerator = _accelerator(loading.device, asked.precision)
    console = console_for()
    built = load(**loading.named(asked.model))
    train, val = _images(asked, loading, reading, built)
    if accelerator.is_main_process and (known := seen_in_training(train, val)):
        console.print(f"{known} of the {len(val)} images to validate on are among those to learn "
                      "from: top-1 flatters", style="yellow", highlight=False)  # fmt: skip
    weights = weights_hash(built)
    fresh = _fit_head(built, train, asked.seed)
    teacher = _named_teacher(asked, loading, built)
    identity = {
        "model": asked.model,
        "weights": weights[:16],
        **_told(asked),
        "teacher": "" if teacher is None else weights_hash(teacher)[:16],
        "train": f"{Path(asked.train).name}, {len(train)} images",
        "val": f"{Path(asked.val).name}, {len(val)} images",
        "batch": reading.batch,
        "size": backbone(built).input_shape[1],
        "processes": accelerator.num_processes,
    }
    held = Checkpoint.load(file, identity) if file.exists() else None
    some = _some(train, backbone(built).transform(loading.size)).to(accelerator.device)
    built.to(accelerator.device)
    if held is None:
        found = _solved(asked, built, some, console.print) or Schedule()
        # What was measured may differ between processes.
        (held,) = broadcast_object_list([Checkpoint(identity, found.to_json())])
    schedule = _schedule_in(held, file)
    unpruned = copy.deepcopy(built) if schedule.stages and not fresh else None
    share = {"report": left_out(console), "workers": reading.workers, "strict": reading.strict,
             "rank": accelerator.process_index, "world": accelerator.num_processes}  # fmt: skip
    feed = Feed(train, reading.batch, **share)
    trainer = Trainer(
        built,
        schedule,
        asked.recipe,
        accelerator,
        steps=feed.steps,
        teacher=teacher or unpruned,
        new=backbone(built).head_parameters() if fresh else (),
        frozen=asked.frozen,
        seed=asked.seed,
    )
    session = Session(trainer, feed, partial(batches, val, reading.batch, **share), file)
    return Finetuning(asked, session, held, unpruned, fresh, some, console)


def _accelerator(device: str, precision: Precision) -> Accelerator:
    name = torch.device(chosen_device(device))
    if name.type == "cuda" and name.index is not None:
        torch.cuda.set_device(name)
    made = Accelerator(cpu=name.type == "cpu", mixed_precision=_MIXED[precision])
    if made.num_processes > 1:
        # Threads of the process group that outlive the interpreter can abort the process.
        atexit.register(made.state.destroy_process_group)
    return made


def _images(
    asked: Asked, loading: ModelOptions, reading: TrainingOptions, model: nn.Module
) -> tuple[ShownImages, ImageDataset]:
    """Those to learn from, augmented, and those to validate on."""
    shown = open_data(asked.train, split="train", limit=reading.limit,
                      transform=asked.recipe.augmentation(model))  # fmt: skip
    val = open_data(asked.val, limit=reading.limit,
                    transform=backbone(model).transform(loading.size))  # fmt: skip
    check_pair(shown, val)
    held = {each.name: getattr(shown, each.name) for each in fields(shown)}
    return ShownImages(**held, seed=asked.seed), val


def _fit_head(model: nn.Module, images: ImageDataset, seed: int) -> bool:
    """Give the model a head for the classes of the images, unless it has one. Is it new?"""
    vit = backbone(model)
    fits = vit.outputs == images.classes if images.exact else vit.outputs >= images.classes
    if fits:
        return False
    set_seed(seed)
    vit.reset_head_(images.classes)
    return True


def _named_teacher(asked: Asked, loading: ModelOptions, student: nn.Module) -> nn.Module | None:
    """The teacher that was asked for, if one was, and if it can teach this student."""
    if asked.teacher is None:
        return None
    tokens = asked.recipe.token_weight > 0
    if Path(asked.teacher).is_file():
        teacher = load(asked.model, weights=Path(asked.teacher), size=loading.size)
    else:
        if loading.size is None:  # before anything is fetched
            check_teacher(student, outline(asked.teacher), tokens)
        teacher = load(asked.teacher, pretrained=True, size=loading.size)
    check_teacher(student, teacher, tokens)
    return teacher


def _some(images: ShownImages, transform: Any, count: int = 32) -> Tensor:
    """A few images, spread over the data."""
    items = [images.items[at * len(images) // count] for at in range(count)]
    plain = ImageDataset(images.name, items, images.classes, images.exact, transform)
    found = next(batches(plain, count, report=lambda name: None), None)
    if found is None:
        raise ValueError(f"none of the images in {images.name} can be read")
    return found[0]


def _solved(asked: Asked, model: nn.Module, some: Tensor, say: Any) -> Schedule | None:
    method = asked.method if asked.budget.schedule is not None else _trained(asked)
    with torch.no_grad():
        return asked.budget.solve(model, method, lambda: some, say)


def _trained(asked: Asked) -> Method:
    """The method that is asked for, as it meets a budget where it is trained."""
    method = resolve(asked.method or DEFAULT)
    return form_for(method).budgeted(method)


def _schedule_in(held: Checkpoint, file: Path) -> Schedule:
    try:
        return Schedule.from_json(held.schedule)
    except ValueError as error:
        raise ValueError(f"the schedule in {file}: {error}") from None


def _told(asked: Asked) -> dict[str, Any]:
    """What makes one training another, in words that its checkpoint is held to."""
    return {
        "method": json.dumps(to_data(_trained(asked))),
        "budget": " ".join(f"{name} {value}" for name, value in asked.budget.given.items()),
        "frozen": asked.frozen,
        "seed": asked.seed,
        "precision": asked.precision,
        **asdict(asked.recipe),
    }
