"""What is on the page for a selection of model, method and budget: no browser, no HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..backbones import backbone
from ..budgets import schedule_for
from ..method import REGISTERED
from ..methods import DEFAULT, name_of, names, resolve, to_data
from ..plan import Plan
from ..schedule import Schedule
from ..show.scene import count_gmacs
from ..show.story import Story, tell
from ..surgery import sharing_copy
from .catalog import CatalogEntry, ModelInput

NO_RIVAL = "none"
PERCENTS = (25, 100)  # between which the budget slider goes
MOST_ROUNDS = 200  # enough for any graph; a stranger's million would keep the worker busy
MOST_OPTION = 10**6  # of a method, where it is a number
MOST_TEXT = 64 * 1024

FormValues = Sequence[object]  # model, method, rival and percent, as the browser sent them


@dataclass(frozen=True)
class Selection:
    """What is selected. With `schedule`, the stages are the user's own and the slider rests."""

    model: str
    method: str
    rival: str = NO_RIVAL
    cost: float = 0.65  # share of the unpruned compute
    schedule: Schedule | None = None


@dataclass(frozen=True)
class MethodView:
    """One method: what it is set to, what it costs, what it did to the image."""

    schedule: Schedule
    gmacs: float
    story: Story

    @property
    def name(self) -> str:
        return name_of(self.schedule.method)

    @property
    def left(self) -> int:
        """Patch tokens after the last stage that other blocks see."""
        return self.story.moments()[-1].kept


@dataclass(frozen=True)
class ViewModel:
    """All that is shown."""

    selection: Selection
    entry: CatalogEntry
    input: ModelInput
    methods: tuple[MethodView, ...]  # the chosen one and, where there is one, the rival
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """Of the unpruned cost, as it came out."""
        return self.methods[0].gmacs / self.entry.unpruned


def build_view_model(
    entry: CatalogEntry, given: ModelInput, selection: Selection, before: ViewModel | None = None
) -> ViewModel:
    """Run copies of the model by each method. `before` is what the page shows now.

    Raises ValueError with one sentence where the selection cannot be followed.
    """
    chosen, note = _configure(entry, given.tensor, selection, before)
    notes = [note] if note else []
    if note:
        selection = replace(selection, schedule=None)
    methods = [_run(entry, given.tensor, chosen)]
    if selection.rival != NO_RIVAL:
        try:
            rival = _meet_budget(entry, selection.rival, methods[0].gmacs, given.tensor)
            methods.append(_run(entry, given.tensor, rival))
        except ValueError as error:
            notes.append(f"No second method: {error}")
    if chosen.method.adaptive:
        notes.append(f"How many patches {methods[0].name} keeps depends on the image.")
    return ViewModel(selection, entry, given, tuple(methods), tuple(notes))


def _configure(
    entry: CatalogEntry, image: Tensor, selection: Selection, before: ViewModel | None
) -> tuple[Schedule, str]:
    """The chosen method, set; and what the user has to know about it, if anything."""
    schedule, budget = selection.schedule, selection.cost * entry.unpruned
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
        # They did for another method or model: keep the budget instead.
        note = f"Your stages do not fit here ({error}): the budget slider took over."
        return _meet_budget(entry, selection.method, budget, image), note
    return schedule, ""


def _meet_budget(entry: CatalogEntry, name: str, budget: float, image: Tensor) -> Schedule:
    # An adaptive method runs the model: not the one that others are using.
    return schedule_for(sharing_copy(entry.model), gmacs=budget, method=name, images=image)


def _check_limits(schedule: Schedule) -> None:
    given = [("rounds", stage.rounds, MOST_ROUNDS) for stage in schedule.stages]
    options = to_data(schedule.method)["options"]
    given += [(name, value, MOST_OPTION) for name, value in options.items()]
    for name, value, most in given:
        if isinstance(value, int) and value > most:
            raise ValueError(f"{name} may be at most {most} on this page, got {value}")


def _run(entry: CatalogEntry, image: Tensor, schedule: Schedule) -> MethodView:
    cost = count_gmacs(entry.model, schedule, image)
    (story,) = tell(entry.model, image, schedule, names=entry.labels)
    return MethodView(schedule, cost, story)


def parse_selection(values: FormValues, schedule: Schedule | None = None) -> Selection:
    """What the form says, as the browser sent it."""
    model, method, rival, percent = values
    if not (isinstance(model, str) and isinstance(method, str) and isinstance(rival, str)):
        raise ValueError("model and methods are chosen by their names")
    _check_method(method)
    if rival != NO_RIVAL:
        _check_method(rival)
    if isinstance(percent, bool) or not isinstance(percent, int | float):
        raise ValueError(f"the budget is a number, got {percent!r}")
    low, high = PERCENTS
    if not low <= percent <= high:
        raise ValueError(f"the budget goes from {low} to {high} % of the unpruned model's cost")
    return Selection(model, method, rival, percent / 100, schedule)


def parse_schedule(text: object) -> Schedule:
    """A schedule from the page: typed into the table, or a file that was loaded."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ValueError("this is not a schedule: a JSON text of at most 64 kB is wanted")
    try:
        _check_method(_named_method(text))
        return Schedule.from_json(text)
    except RecursionError:
        raise ValueError("this is not a schedule: its JSON is nested too deep") from None
    except TypeError as error:  # a value of the wrong kind: to whoever typed it, all the same
        raise ValueError(str(error)) from None


def _named_method(text: str) -> object:
    try:
        return json.loads(text)["method"]["name"]
    except (ValueError, LookupError, TypeError):
        return DEFAULT  # none is named, or `Schedule.from_json` says what is wrong


def _check_method(name: object) -> None:
    """No `FILE.py:CLASS`: it would import a file that the browser names."""
    if not isinstance(name, str) or name not in REGISTERED:
        raise ValueError(f"unknown method {name!r}; the methods are {', '.join(names())}")
