"""What the page shows for a model, a method and a budget: facts and Python code, no HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from ..backbones import backbone
from ..budgets import schedule_for
from ..data.models import is_model_folder
from ..method import REGISTERED
from ..methods import DEFAULT, name_of, names, resolve, to_data
from ..plan import Plan
from ..schedule import Schedule, Stage
from ..show.scene import count_gmacs
from ..show.story import Story, tell
from ..surgery import sharing_copy
from .catalog import BUILT_IN, CatalogEntry, ModelInput

NO_RIVAL = "none"
PERCENTS = (25, 100)  # the range of the budget slider
MAX_ROUNDS = 200  # enough for any graph; a million would block the page for everyone
MAX_OPTION = 10**6  # of a method's numbers
MAX_SCHEDULE_CHARS = 64 * 1024

FormValues = Sequence[object]  # model, method, rival and percent, as the browser sent them


@dataclass(frozen=True)
class Selection:
    """What the user chose. With a `schedule`, the stages are the user's and `cost` is not used."""

    model: str
    method: str
    rival: str = NO_RIVAL
    cost: float = 0.65  # share of the unpruned GMACs
    schedule: Schedule | None = None


@dataclass(frozen=True)
class MethodView:
    """One method: its schedule, its cost, and what it did to the image."""

    schedule: Schedule
    gmacs: float
    story: Story

    @property
    def name(self) -> str:
        return name_of(self.schedule.method)

    @property
    def tokens_left(self) -> int:
        """Patch tokens after the last stage."""
        return self.story.moments()[-1].kept


@dataclass(frozen=True)
class ViewModel:
    """Everything that the page shows."""

    selection: Selection
    entry: CatalogEntry
    input: ModelInput
    methods: tuple[MethodView, ...]  # the chosen one, then its rival if there is one
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """Share of the unpruned GMACs that the chosen method needs."""
        return self.methods[0].gmacs / self.entry.unpruned_gmacs


class Times(NamedTuple):
    """Milliseconds per image, of the unpruned model and then of the methods."""

    milliseconds: list[float]
    batch: int


def build_view_model(
    entry: CatalogEntry,
    image: ModelInput,
    selection: Selection,
    before: ViewModel | None = None,
) -> ViewModel:
    """Run the chosen method and its rival on an image.

    Args:
        entry: The model.
        image: What to run it on.
        selection: Method, rival, and budget or schedule.
        before: What the page shows now. A schedule that it shows and that does not fit another
            model or method gives way to the budget; a new one that does not fit is an error.
    """
    schedule, note = _choose_schedule(entry, image.tensor, selection, before)
    notes = [note] if note else []
    if note:
        selection = replace(selection, schedule=None)
    methods = [_run(entry, image.tensor, schedule)]
    if selection.rival != NO_RIVAL:
        try:
            rival = _meet_budget(entry, selection.rival, methods[0].gmacs, image.tensor)
            methods.append(_run(entry, image.tensor, rival))
        except ValueError as error:
            notes.append(f"No second method: {error}")
    if schedule.method.adaptive:
        notes.append(f"How many patches {methods[0].name} keeps depends on the image.")
    return ViewModel(selection, entry, image, tuple(methods), tuple(notes))


def _choose_schedule(
    entry: CatalogEntry, image: Tensor, selection: Selection, before: ViewModel | None
) -> tuple[Schedule, str]:
    """Return the schedule to run, and a note if it is not the one that was asked for."""
    schedule, budget = selection.schedule, selection.cost * entry.unpruned_gmacs
    if schedule is None:
        return _meet_budget(entry, selection.method, budget, image), ""
    if name_of(schedule.method) != selection.method:
        schedule = schedule.by(resolve(selection.method))
    _check_limits(schedule)
    try:
        Plan(schedule, backbone(entry.model).geometry).check()
    except ValueError as error:
        if before is None or before.selection.schedule != selection.schedule:
            raise
        note = f"Your stages do not fit here ({error}), so the budget slider applies again."
        return _meet_budget(entry, selection.method, budget, image), note
    return schedule, ""


def _meet_budget(entry: CatalogEntry, name: str, budget: float, image: Tensor) -> Schedule:
    # An adaptive method runs the model, so it gets a copy: other tabs use this one.
    return schedule_for(sharing_copy(entry.model), gmacs=budget, method=name, images=image)


def _check_limits(schedule: Schedule) -> None:
    limits = [("rounds", stage.rounds, MAX_ROUNDS) for stage in schedule.stages]
    options = to_data(schedule.method)["options"]
    limits += [(name, value, MAX_OPTION) for name, value in options.items()]
    for name, value, limit in limits:
        if isinstance(value, int) and value > limit:
            raise ValueError(f"{name} may be at most {limit} on this page, got {value}")


def _run(entry: CatalogEntry, image: Tensor, schedule: Schedule) -> MethodView:
    cost = count_gmacs(entry.model, schedule, image)
    (story,) = tell(entry.model, image, schedule, names=entry.labels)
    return MethodView(schedule, cost, story)


def parse_selection(values: FormValues, schedule: Schedule | None = None) -> Selection:
    """Check the form's values as the browser sent them."""
    model, method, rival, percent = values
    if not (isinstance(model, str) and isinstance(method, str) and isinstance(rival, str)):
        raise ValueError("model and methods must be names")
    _check_method(method)
    if rival != NO_RIVAL:
        _check_method(rival)
    if isinstance(percent, bool) or not isinstance(percent, int | float):
        raise ValueError(f"the budget must be a number, got {percent!r}")
    low, high = PERCENTS
    if not low <= percent <= high:
        raise ValueError(f"the budget must be {low} to {high} %, got {percent}")
    return Selection(model, method, rival, percent / 100, schedule)


def parse_schedule(text: object) -> Schedule:
    """Parse a schedule that was typed into the table or loaded from a file."""
    if not isinstance(text, str) or len(text) > MAX_SCHEDULE_CHARS:
        raise ValueError("a schedule must be JSON of at most 64 kB")
    try:
        _check_method(_method_in(text))
        return Schedule.from_json(text)
    except RecursionError:
        raise ValueError("the schedule's JSON is nested too deeply") from None
    except TypeError as error:  # a value of the wrong type is the user's mistake, too
        raise ValueError(str(error)) from None


def _method_in(text: str) -> object:
    try:
        return json.loads(text)["method"]["name"]
    except (ValueError, LookupError, TypeError):
        return DEFAULT  # `Schedule.from_json` says what is wrong, if anything


def _check_method(name: object) -> None:
    """Refuse `FILE.py:CLASS`, which would import a file that the browser names."""
    if not isinstance(name, str) or name not in REGISTERED:
        raise ValueError(f"unknown method {name!r}; the methods are {', '.join(names())}")


def write_python(shown: ViewModel) -> str:
    """Write code that does what the page shows, first the chosen method, then its rival."""
    chosen, *rivals = shown.methods
    imports, model = _write_model(shown.entry)
    lines = [
        *imports,
        "",
        f"model = {model}",
        f"# {chosen.name}: {chosen.gmacs:.4f} of {shown.entry.unpruned_gmacs:.4f} GMACs",
        *_write_pruning(chosen.schedule),
        "logits = model(images)  # the same call as before",
    ]
    for rival in rivals:
        lines += ["", f"# {rival.name} at the same cost", *_write_pruning(rival.schedule)]
    return "\n".join(lines) + "\n"


def _write_model(entry: CatalogEntry) -> tuple[list[str], str]:
    """Write the imports, and how to make the model."""
    ours = "import zerotprune as ztp"
    if entry.name == BUILT_IN:
        return [ours, "from zerotprune.data import demo"], "demo.model()"
    remark = "  # this page uses other weights" if entry.custom_weights else ""
    name = json.dumps(entry.name)
    if ":" in entry.name or is_model_folder(entry.name):
        imports = [ours, "from zerotprune.data.models import load"]
        return imports, f"load({name}, pretrained=True){remark}"
    return ["import timm, zerotprune as ztp"], (
        f"timm.create_model({name}, pretrained=True).eval(){remark}"
    )


def _write_pruning(schedule: Schedule) -> list[str]:
    if not schedule.stages:
        return ["schedule = ztp.Schedule()  # nothing is pruned", "ztp.prune_(model, schedule)"]
    stages = [f"    {_write_stage(stage)}," for stage in schedule.stages]
    method = _write_method(schedule)
    return [
        "schedule = ztp.Schedule((",
        *stages,
        f"), {method})",
        "ztp.prune_(model, schedule)",
    ]


def _write_stage(stage: Stage) -> str:
    arguments = [f"{stage.block}"]
    for name, default in (("keep", 1.0), ("similar", 0), ("rounds", None)):
        value = getattr(stage, name)
        if value != default:
            arguments.append(f"{name}={value!r}")
    return f"ztp.Stage({', '.join(arguments)})"


def _write_method(schedule: Schedule) -> str:
    """Write the method's name, or its class if it has options that differ from the defaults."""
    data, name = to_data(schedule.method), name_of(schedule.method)
    if not data["options"] or name != data["name"]:
        return f'"{name}"'
    options = ", ".join(f"{key}={value!r}" for key, value in data["options"].items())
    return f"ztp.methods.{type(schedule.method).__name__}({options})"
