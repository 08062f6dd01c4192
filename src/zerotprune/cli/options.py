"""Options that several commands share: the model, the data, the budget, what comes out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from cyclopts import Group, Parameter
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets import Budget, schedule_for
from ..budgets.speed import TimeBudget, Timed, cost_for
from ..data.images import ImageDataset, open_data
from ..data.models import DEMO
from ..data.weights import schedule_in
from ..method import Method
from ..methods import DEFAULT, resolve
from ..schedule import PRESETS, Schedule

Item = TypeVar("Item")
#: `--method a b`, or `--method a --method b`
Several = Annotated[list[Item] | None, Parameter(consume_multiple=True, negative=())]
Flag = Annotated[bool, Parameter(negative=())]
Precision = Literal["float32", "bfloat16", "float16"]

MODEL, DATA, BUDGET, OUTPUT = (
    Group(name, sort_key=number)
    for number, name in enumerate(("Model", "Data", "Budget", "Output"), start=1)
)

_MODEL = "`demo`, a timm model's name, or another library's: hf:FOLDER, torchvision:NAME, …"
ModelName = Annotated[str, Parameter(help=_MODEL)]
DataName = Annotated[
    str,
    Parameter(
        help="A folder of class folders, a flat folder with --mapping, tar shards, or hf:DATASET."
    ),
]
_METHOD = "by name, or FILE.py:CLASS for one of your own; `zerotprune info` lists them."
MethodName = Annotated[str, Parameter(group=BUDGET, help=f"The method {_METHOD}")]
MethodNames = Annotated[
    list[str] | None,
    Parameter(group=BUDGET, consume_multiple=True, negative=(), help=f"The methods {_METHOD}"),
]
ModelPrecision = Annotated[
    Precision, Parameter(group=MODEL, help="Of the model; scores are float32 in any case.")
]
_CALIBRATION = "Rounds for stages that leave them open, and the VHF range: what `calibrate` wrote."
CalibrationFile = Annotated[Path | None, Parameter(group=BUDGET, help=_CALIBRATION)]
CsvFile = Annotated[Path | None, Parameter(group=OUTPUT, help="Append the rows to this file.")]
_JSON = "Print the rows as JSON, for scripts; all else goes to the error stream."
_NO_SPEED = "Measure no speed: every image runs once, with no batch to warm up on."
NoSpeedFlag = Annotated[bool, Parameter(group=OUTPUT, negative=(), help=_NO_SPEED)]
JsonFlag = Annotated[bool, Parameter(group=OUTPUT, negative=(), help=_JSON)]


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class ModelOptions:
    """How the model is loaded, and where it runs."""

    weights: Path | None = None
    "Local weights: safetensors, or a pickle of tensors alone. Default: the published ones."
    size: int | None = None
    "Side of the images in pixels, if not the model's own."
    classes: int | None = None
    "Classes of the head, if not the model's own; of a weights file they are read by themselves."
    pool: str | None = None
    "How a timm model's head pools: token, avg, avgmax, max or map, if not as the model's own."
    device: str = "auto"
    "cpu, cuda, or auto: cuda where there is one."
    random_weights: Flag = False
    "Random weights instead of the published ones: cost and speed are right, predictions are not."

    def named(self, model: str) -> dict[str, Any]:
        """As `models.load` is told of it."""
        self._check_weights(model)
        pretrained = self.weights is None and not self.random_weights
        return {"name": model, "weights": self.weights, "pretrained": pretrained,
                "size": self.size, "classes": self.classes, "pool": self.pool}  # fmt: skip

    def outlined(self, model: str) -> dict[str, Any]:
        """As `models.outline` is told of it."""
        self._check_weights(model)
        return {"name": model, "classes": self.classes, "pool": self.pool}

    def _check_weights(self, model: str) -> None:
        if self.random_weights and self.weights is not None:
            raise ValueError("give --weights or --random-weights, not both")
        if self.random_weights and model == DEMO:
            raise ValueError("the built-in model has weights of its own: omit --random-weights")


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class DataOptions:
    """How the images are found."""

    mapping: Path | None = None
    "For a flat folder: a file with lines `image label`."
    split: str = "validation"
    "Of a Hugging Face dataset."
    limit: int | None = None
    "Take only so many images, spread evenly over the data."
    strict: Flag = False
    "Stop at the first image that cannot be read; else it is named and left out."

    def open(
        self, data: str, model: nn.Module, size: int | None, labelled: bool = True
    ) -> ImageDataset:
        """The images of the data through the model's own transform."""
        return open_data(
            data,
            mapping=self.mapping,
            split=self.split,
            limit=self.limit,
            transform=backbone(model).transform(size),
            labelled=labelled,
        )


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class BatchOptions(DataOptions):
    """… and how many are run at a time."""

    batch: int = 32
    "Images at a time."


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class ReadingOptions(BatchOptions):
    """… and how many processes decode them."""

    workers: int = 2
    "Processes that decode images."


@Parameter(name="*", group=BUDGET)
@dataclass(frozen=True)
class BudgetOptions:
    """What may be spent. The same words give the same schedule in Python and on the page."""

    cost: float | None = None
    "Share of the unpruned model's compute, such as 0.6."
    gmacs: float | None = None
    "Multiply-accumulates for one image, in units of 10⁹."
    speedup: float | None = None
    "Times the unpruned model's speed, measured on this machine."
    latency_ms: float | None = None
    "Milliseconds for one batch, measured on this machine."
    schedule: str | None = None
    "A preset of the paper (ablation-is, zero-tp-a, …), a JSON file, or trained weights."
    tuned: Flag = False
    "The schedule that was searched for this model and budget: `zerotprune info` names them."

    @property
    def given(self) -> dict[str, float | str]:
        names = ("cost", "gmacs", "speedup", "latency_ms", "schedule")
        held = ((f"--{name.replace('_', '-')}", getattr(self, name)) for name in names)
        return {name: value for name, value in held if value is not None}

    @property
    def time(self) -> TimeBudget | None:
        """The budget, where it is one in time."""
        if self.speedup is None and self.latency_ms is None:
            return None
        return TimeBudget(self.speedup, self.latency_ms)

    def check(self) -> None:
        """Say what is wrong before anything is loaded."""
        if len(self.given) > 1:
            raise ValueError(f"give one budget, not several: {' and '.join(self.given)}")
        if self.tuned and self.cost is None and self.gmacs is None:
            raise ValueError("--tuned goes with --cost or --gmacs")
        if self.cost is not None or self.gmacs is not None:
            Budget(self.cost, self.gmacs)
        if self.time is None and self.schedule is not None:
            preset_or_file(self.schedule)

    def acting(self, method: str | None) -> Method:
        """The method that is named; else the one that the schedule was made for, or the default."""
        if method is None and self.schedule is not None:
            return preset_or_file(self.schedule).method
        return resolve(method or DEFAULT)

    def solve(
        self,
        model: nn.Module,
        method: str | None,
        images: Callable[[], Tensor],
        say: Callable[[str], None],
    ) -> Schedule | None:
        """The schedule that is asked for; None if nothing is.

        `images` gives a batch where the cost has to be measured; what was measured is told.
        """
        if self.schedule is not None:
            schedule = preset_or_file(self.schedule)
            return schedule if method is None else schedule.by(method)
        if not self.given:
            return None
        chosen = resolve(method or DEFAULT)
        if self.time is None:
            return schedule_for(model, cost=self.cost, gmacs=self.gmacs, method=chosen,
                                images=_needed(chosen, images), tuned=self.tuned)  # fmt: skip
        cost, timed = cost_for(model, self.time, images(), chosen)
        say(told(cost, timed))
        return schedule_for(model, cost=cost, method=chosen, images=_needed(chosen, images))


@Parameter(name="*", group=BUDGET)
@dataclass(frozen=True)
class BudgetsOptions(BudgetOptions):
    """… or several costs, for commands that put their results side by side."""

    cost: Several[float] = None  # type: ignore[assignment]
    "Shares of the unpruned model's compute, one or several, such as 0.7 0.5."

    def each(self) -> list[BudgetOptions]:
        """One budget for each cost; one in all where it is not a cost that is given."""
        given = {option.name: getattr(self, option.name) for option in fields(BudgetOptions)}
        costs = list(dict.fromkeys(self.cost or ())) or [None]
        return [BudgetOptions(**given | {"cost": cost}) for cost in costs]


def told(cost: float, timed: Timed) -> str:
    """What a time budget came to."""
    return f"measured: {cost:.3f} of the cost; {timed}"


def _needed(method: Method, images: Callable[[], Tensor]) -> Tensor | None:
    return images() if method.adaptive else None


def preset_or_file(schedule: str) -> Schedule:
    if schedule in PRESETS:
        return Schedule.preset(schedule)
    if (trained := schedule_in(Path(schedule))) is not None:
        return trained
    if not Path(schedule).is_file():
        presets = ", ".join(PRESETS)
        raise ValueError(f"{schedule!r} is neither a preset ({presets}) nor a file")
    return Schedule.load(schedule)


def chosen_device(name: str) -> str:
    """The device that a user means, if it is there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: use cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device is to be seen here: use --device cpu")
    count = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(device.type, 0)
    if device.type == "mps" and torch.backends.mps.is_available():
        count = 1
    if not count:
        raise ValueError(f"a model cannot run on {name!r} here: use cpu, cuda or auto")
    if (device.index or 0) >= count:
        raise ValueError(f"there is no {name}: the last {device.type} device is {count - 1}")
    return name


def refuse_torchrun(what: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"{what}: start it without torchrun")
