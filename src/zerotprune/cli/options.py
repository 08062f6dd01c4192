"""Options that several commands share: the model, the data, the budget, what comes out."""

# No annotations of the future here: cyclopts reads those of a group of options in the module of a
# subclass, which knows other names.

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from cyclopts import App, Group, Parameter
from cyclopts.help import DefaultFormatter
from rich.text import Text
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets import Budget, fit, schedule_for
from ..budgets.speed import TimeBudget, Timed, cost_for
from ..data.images import ImageDataset, open_data
from ..data.models import DEMO, is_model_folder, load, outline, saved_with
from ..data.sources import has_splits
from ..data.weights import schedule_in
from ..measure.records import check_rows_fit
from ..method import Method, UnnamedMethod
from ..methods import DEFAULT, resolve
from ..safety.files import names_in
from ..safety.ranges import RANGES, Range
from ..saving import is_saved, read_saved
from ..schedule import PRESETS, Schedule
from ..shapes import Precision
from .checks import Read, Written, marks

T = TypeVar("T")
#: `--method a b`, or `--method a --method b`
Several = Annotated[list[T] | None, Parameter(consume_multiple=True, negative=())]
Flag = Annotated[bool, Parameter(negative=())]

#: Numbers that several commands take; --help prints their ranges.
BatchCount = Annotated[int, RANGES["batch"]]
Cost = Annotated[float, RANGES["cost"]]
Limit = Annotated[int, RANGES["limit"]]
Seed = Annotated[int, RANGES["seed"]]
Speedup = Annotated[float, RANGES["speedup"]]
Threads = Annotated[int, RANGES["threads"]]
Workers = Annotated[int, RANGES["workers"]]

#: A file that is read, a string that may name one, and a file that is written.
Input = Annotated[Path, Read()]
InputName = Annotated[str, Read()]
Output = Annotated[Path, Written()]

MODEL, DATA, BUDGET, OUTPUT = (
    Group(name, sort_key=number)
    for number, name in enumerate(("Model", "Data", "Budget", "Output"), start=1)
)

_MODEL = "`demo`, a timm model's name, or another library's: hf:FOLDER, torchvision:NAME, …"
ModelName = Annotated[str, Parameter(help=_MODEL)]
DataName = Annotated[
    InputName,
    Parameter(
        help="A folder of class folders, a flat folder with --mapping, tar shards, or hf:DATASET."
    ),
]
_METHOD = "by name, or FILE.py:CLASS for one of your own; `zerotprune info` lists them."
MethodName = Annotated[InputName, Parameter(group=BUDGET, help=f"The method {_METHOD}")]
MethodNames = Annotated[
    list[InputName] | None,
    Parameter(group=BUDGET, consume_multiple=True, negative=(), help=f"The methods {_METHOD}"),
]
ModelPrecision = Annotated[
    Precision, Parameter(group=MODEL, help="Of the model; scores are always float32.")
]
_CALIBRATION = "Rounds for stages without rounds, and the VHF range: a file that `calibrate` wrote."
CalibrationFile = Annotated[Input | None, Parameter(group=BUDGET, help=_CALIBRATION)]


def _check_csv(_: object, path: Path | None) -> None:
    if path is not None:
        check_rows_fit(path)


def _check_figure(_: object, path: Path | None) -> None:
    from ..plots.figures import check_figure_file

    if path is not None:
        check_figure_file(path)


_CSV = "Append the rows to this file."
CsvFile = Annotated[Output | None, Parameter(group=OUTPUT, validator=_check_csv, help=_CSV)]
FigureFile = Annotated[Output | None, Parameter(group=OUTPUT, validator=_check_figure)]
FigureFolder = Annotated[Path | None, Parameter(group=OUTPUT)]
_JSON = "Print the rows as JSON, for scripts; all else goes to the error stream."
_NO_SPEED = "Measure no speed: every image runs once, with no batch to warm up on."
NoSpeedFlag = Annotated[bool, Parameter(group=OUTPUT, negative=(), help=_NO_SPEED)]
JsonFlag = Annotated[bool, Parameter(group=OUTPUT, negative=(), help=_JSON)]


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class EncoderOptions:
    """How to load a model for its vectors, where its classes do not matter; where to run it."""

    weights: Input | None = None
    "Local weights: safetensors, or a pickle of tensors alone. Default: the published ones."
    size: Annotated[int, RANGES["size"]] | None = None
    "Side of the images in pixels. Default: the model's own."
    device: str = "auto"
    "cpu, cuda, or auto: cuda if there is one."
    random_weights: Flag = False
    "Random weights instead of the published ones: cost and speed are right, predictions are not."

    def load(self, model: str) -> nn.Module:
        """Load the model, on the CPU."""
        return load(**self.load_kwargs(model))

    def load_kwargs(self, model: str) -> dict[str, Any]:
        """Return the arguments of `models.load`."""
        self.check_weights(model)
        pretrained = self.weights is None and not self.random_weights
        return {"name": model, "weights": self.weights, "pretrained": pretrained,
                "size": self.size}  # fmt: skip

    def check_weights(self, model: str) -> None:
        """Refuse random weights beside others."""
        if self.random_weights and self.weights is not None:
            raise ValueError("give --weights or --random-weights, not both")
        if self.random_weights and model == DEMO:
            raise ValueError("the built-in model has weights of its own: omit --random-weights")


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class ModelOptions(EncoderOptions):
    """How to load a whole model, and where to run it."""

    classes: Annotated[int, RANGES["classes"]] | None = None
    "Classes of the head. Default: as in the weights file, or the model's own."
    pool: str | None = None
    "How a timm model's head pools: token, avg, avgmax, max or map. Default: the model's own way."

    def load_kwargs(self, model: str) -> dict[str, Any]:
        """Return the arguments of `models.load`."""
        return super().load_kwargs(model) | {"classes": self.classes, "pool": self.pool}

    def outline(self, model: str) -> nn.Module:
        """Return the model without its weights."""
        self.check_weights(model)
        return outline(model, classes=self.classes, pool=self.pool)


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class DataOptions:
    """How to find the images."""

    mapping: Input | None = None
    "For a flat folder: a file with lines `image label`."
    split: str | None = None
    "Of a Hugging Face dataset, or train or test of the paper's sets. Default: validation or test."
    limit: Limit | None = None
    "Use at most this many images, spread evenly over the data."
    strict: Flag = False
    "Stop at the first image that cannot be read. Default: name it and leave it out."

    def open(
        self, data: str, model: nn.Module, size: int | None, labeled: bool = True
    ) -> ImageDataset:
        """Open the data with the model's transform."""
        if self.split is not None and not has_splits(data):
            raise ValueError(f"--split {self.split} is not for {data}, which has no splits")
        return open_data(
            data,
            mapping=self.mapping,
            split=self.split or "validation",
            limit=self.limit,
            transform=backbone(model).transform(size),
            labeled=labeled,
        )


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class BatchOptions(DataOptions):
    """How to find the images, and how many to run at a time."""

    batch: BatchCount = 32
    "Images at a time."


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class ReadingOptions(BatchOptions):
    """How to find the images, run them in batches, and decode them."""

    workers: Workers = 2
    "Processes that decode images."


@Parameter(name="*", group=BUDGET)
@dataclass(frozen=True)
class BudgetOptions:
    """The budget. The same words give the same schedule in Python and on the page."""

    cost: Cost | None = None
    "Share of the unpruned model's compute, such as 0.6."
    gmacs: Annotated[float, RANGES["gmacs"]] | None = None
    "Multiply-accumulates for one image, in units of 10⁹."
    speedup: Speedup | None = None
    "Times the unpruned model's speed, measured on this machine."
    latency_ms: Annotated[float, RANGES["latency_ms"]] | None = None
    "Milliseconds for one batch, measured on this machine."
    schedule: InputName | None = None
    "A preset of the paper (ablation-is, zero-tp-a, …), a JSON file, or trained weights."
    tuned: Flag = False
    "Use the schedule that was searched for this model and budget; `zerotprune info` lists them."

    @property
    def options(self) -> dict[str, float | str]:
        """Budgets by option name, as the user gave them."""
        names = ("cost", "gmacs", "speedup", "latency_ms", "schedule")
        values = ((f"--{name.replace('_', '-')}", getattr(self, name)) for name in names)
        return {name: value for name, value in values if value is not None}

    @property
    def time(self) -> TimeBudget | None:
        """The budget, if it is a speedup or a latency."""
        if self.speedup is None and self.latency_ms is None:
            return None
        return TimeBudget(self.speedup, self.latency_ms)

    def check(self, method: str | None = None, model: str = DEMO) -> None:
        """Refuse wrong combinations before anything is loaded.

        Args:
            method: --method, which needs a budget …
            model: … unless this is a folder that `ztp.save` wrote.
        """
        if len(self.options) > 1:
            raise ValueError(f"give one budget, not several: {' and '.join(self.options)}")
        if self.tuned and self.cost is None and self.gmacs is None:
            raise ValueError("--tuned goes with --cost or --gmacs")
        if self.cost is not None or self.gmacs is not None:
            Budget(self.cost, self.gmacs)
        if self.time is None and self.schedule is not None:
            with suppress(UnnamedMethod):  # it may be named by --method
                preset_or_file(self.schedule)
        if method is not None:
            resolve(method)
            if not self.options and not is_model_folder(model):
                raise _without_budget(method)

    def acting(self, method: str | None) -> Method:
        """Return the named method, or else the schedule's, or else the default."""
        if method is None and self.schedule is not None:
            return preset_or_file(self.schedule).method
        return resolve(method or DEFAULT)

    def solve(
        self,
        model: nn.Module,
        method: Method | str | None,
        images: Callable[[], Tensor],
        say: Callable[[str], None],
    ) -> Schedule | None:
        """Return the schedule that meets the budget; None without a budget.

        Args:
            model: The model to prune.
            method: Its name; None for the schedule's, or the default.
            images: Returns a batch, for costs that are measured.
            say: Called with a line about what was measured.
        """
        geometry = backbone(model).geometry
        name = method if isinstance(method, str) else None
        if self.schedule is not None:
            schedule = preset_or_file(self.schedule, name)
            if method is not None and not _is_named(schedule.method, method):
                schedule = schedule.by(method)
            return fit(schedule, geometry)
        if not self.options:
            saved = saved_with(model, name)
            if saved is None:
                return None
            if method is not None and not _is_named(saved.schedule.method, method):
                raise _without_budget(method)
            return fit(saved.schedule, geometry, saved.outputs)
        chosen = resolve(method or DEFAULT)
        if self.time is None:
            return schedule_for(model, cost=self.cost, gmacs=self.gmacs, method=chosen,
                                images=_needed(chosen, images), tuned=self.tuned)  # fmt: skip
        cost, timed = cost_for(model, self.time, images(), chosen)
        say(describe_cost(cost, timed))
        return schedule_for(model, cost=cost, method=chosen, images=_needed(chosen, images))


@Parameter(name="*", group=BUDGET)
@dataclass(frozen=True)
class BudgetsOptions(BudgetOptions):
    """The budget, or several costs, for commands that put their results side by side."""

    cost: Several[Cost] = None  # type: ignore[assignment]
    "Shares of the unpruned model's compute, one or several, such as 0.7 0.5."

    def split(self, method: str | None = None, model: str = DEMO) -> list[BudgetOptions]:
        """Return a checked budget for each cost, or a single one without costs."""
        options = {option.name: getattr(self, option.name) for option in fields(BudgetOptions)}
        costs: list[float | None] = [*dict.fromkeys(self.cost or ())] or [None]
        budgets = [BudgetOptions(**options | {"cost": cost}) for cost in costs]
        for budget in budgets:
            budget.check(method, model)
        return budgets


def refuse_without(wanted: str, *groups: Any) -> None:
    """Refuse options that do nothing without another one, which was not given.

    Args:
        wanted: The other option.
        groups: Groups of options, all of which need it.
    """
    options = [(group, option) for group in groups for option in fields(group)]
    idle = [
        f"--{option.name.replace('_', '-')}"
        for group, option in options
        if getattr(group, option.name) != option.default
    ]
    if idle:
        raise ValueError(f"{' and '.join(idle)} need{'s' * (len(idle) == 1)} {wanted}, too")


def describe_cost(cost: float, timed: Timed) -> str:
    """Say what a time budget means as a cost."""
    return f"measured: {cost:.3f} of the cost; {timed}"


def _without_budget(method: Method | str) -> ValueError:
    return ValueError(f"--method {method} needs a budget: give --cost, or --schedule")


def _needed(method: Method, images: Callable[[], Tensor]) -> Tensor | None:
    return images() if method.adaptive else None


def _is_named(method: Method, name: Method | str) -> bool:
    """Return whether --method names the same user-defined method, which then keeps its options."""
    return isinstance(name, str) and ".py:" in name and type(resolve(name)) is type(method)


def preset_or_file(schedule: str, method: str | None = None) -> Schedule:
    """Return a preset, or the schedule in a file.

    Args:
        schedule: A preset's name, a JSON file, trained weights, or a folder of `ztp.save`.
        method: --method, which may be the FILE.py:CLASS that a file needs.
    """
    custom = method if method is not None and ".py:" in method else None
    if schedule in PRESETS:
        return Schedule.preset(schedule)
    if (trained := schedule_in(Path(schedule), custom)) is not None:
        return trained
    if is_saved(schedule):
        return read_saved(schedule, custom).schedule
    if not Path(schedule).is_file():
        presets = ", ".join(PRESETS)
        raise ValueError(f"{schedule!r} is neither a preset ({presets}) nor a file")
    return Schedule.load(schedule, custom)


def read_class_names(path: Path, model: nn.Module) -> list[str]:
    """Read a name for each class of the model, one per line."""
    names = names_in(path)
    classes = backbone(model).outputs
    if len(names) != classes:
        raise ValueError(f"{path} names {len(names)} classes, the model has {classes}")
    return names


def resolve_device(name: str) -> str:
    """Return the device of that name, if it exists; "auto" is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: use cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device found: use --device cpu")
    count = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(device.type, 0)
    if device.type == "mps" and torch.backends.mps.is_available():
        count = 1
    if not count:
        raise ValueError(f"a model cannot run on {name!r} here: use cpu, cuda or auto")
    if (device.index or 0) >= count:
        raise ValueError(f"no device {name}: the last {device.type} device is {count - 1}")
    return name


def world_size() -> int:
    """Return the number of processes under torchrun; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def refuse_torchrun(reason: str) -> None:
    """Raise ValueError under torchrun; `reason` says why the command needs a single process."""
    if world_size() > 1:
        raise ValueError(f"{reason}: start it without torchrun")


class RangeFormatter(DefaultFormatter):
    """Format a command's help as cyclopts does, with the range after the description of a
    number."""

    def __init__(self, command: App) -> None:
        super().__init__()
        self._ranges = {
            name: mark
            for argument in command.assemble_argument_collection()
            for mark in marks(argument.field_info.annotation)
            if isinstance(mark, Range)
            for name in argument.names
        }

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        for entry in panel.entries:
            for limits in {self._ranges[name] for name in entry.names if name in self._ranges}:
                entry.description.append(Text(f"[{limits}]", "dim"))
        super().__call__(console, options, panel)
