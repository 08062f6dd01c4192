"""What is on the page for a selection of model, method and budget: no browser, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..backbones import backbone
from ..budgets.contenders import Contender, contender, method_named
from ..measure.modes import sharing_copy
from ..methods import Method
from ..plan import Plan
from ..schedule import Schedule
from ..show.scene import count_gmacs
from ..show.story import Story, tell
from .catalog import CatalogEntry, ModelInput

NO_RIVAL = "none"
PERCENTS = (25, 100)  # between which the budget slider goes
MOST_ROUNDS = 200  # enough for any graph; a stranger's million would keep the worker busy
MOST_TEXT = 64 * 1024


FormValues = Sequence[object]  # model, method, rival and percent, as the browser sent them


@dataclass(frozen=True)
class Selection:
    """What is selected. With `schedule`, the stages are the user's own and the slider rests."""

    model: str
    method: str
    rival: str = NO_RIVAL
    share: float = 0.65  # of the unpruned GMACs
    schedule: Schedule | None = None


@dataclass(frozen=True)
class MethodView:
    """One method: what it is set to, what it costs, what it did to the image."""

    contender: Contender
    gmacs: float
    story: Story

    @property
    def name(self) -> str:
        return self.contender.name

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
    def share(self) -> float:
        """Of the unpruned cost, as it came out."""
        return self.methods[0].gmacs / self.entry.unpruned


def build_view_model(
    entry: CatalogEntry,
    given: ModelInput,
    selection: Selection,
    before: ViewModel | None = None,
) -> ViewModel:
    """Run the model by each method. `before` is what the page shows now.

    Raises ValueError with one sentence where the selection cannot be followed. The entry's model is
    left alone: all that prunes does so on a copy that shares its weights.
    """
    if selection.rival != NO_RIVAL:
        method_named(selection.rival)  # an unknown name is an error; a budget not met, a note
    notes = list[str]()
    chosen, note = _configure(entry, given.tensor, selection, before)
    if note:
        notes.append(note)
        selection = replace(selection, schedule=None)
    methods = [_run(entry, given.tensor, chosen)]
    if selection.rival != NO_RIVAL:
        try:
            rival = _meet_budget(entry, selection.rival, methods[0].gmacs, given.tensor)
            methods.append(_run(entry, given.tensor, rival))
        except ValueError as error:
            notes.append(f"No second method: {error}")
    if chosen.method.adaptive:
        notes.append(
            f"How many patches {chosen.name} keeps depends on the image, and its setting is part "
            "of the method: the Python lines hold it, the schedule does not."
        )
    return ViewModel(selection, entry, given, tuple(methods), tuple(notes))


def _configure(
    entry: CatalogEntry, image: Tensor, selection: Selection, before: ViewModel | None
) -> tuple[Contender, str]:
    """The chosen method, set; and what the user has to know about it, if anything."""
    name, schedule, budget = selection.method, selection.schedule, selection.share * entry.unpruned
    if schedule is None:
        return _meet_budget(entry, name, budget, image), ""
    method = _keep_settings(name, before)
    _check_rounds(schedule)
    try:
        Plan(schedule, method, backbone(entry.model).geometry).check()
    except ValueError as error:
        if before is None or (before.selection.method, before.entry.name) == (name, entry.name):
            raise
        # The stages were made for another method or model: keep the budget instead.
        note = f"Your stages do not fit here ({error}): the budget slider took over."
        return _meet_budget(entry, name, budget, image), note
    return Contender(name, schedule, method), ""


def _meet_budget(entry: CatalogEntry, name: str, budget: float, image: Tensor) -> Contender:
    if method_named(name).adaptive:  # runs the model, so not the one that others are using
        return contender(name, sharing_copy(entry.model), budget, image)
    return contender(name, entry.model, budget)


def _keep_settings(name: str, before: ViewModel | None) -> Method:
    """The method with the settings that it has on the page now, else with its defaults."""
    if before is not None and before.methods[0].name == name:
        return before.methods[0].contender.method
    return method_named(name)


def _check_rounds(schedule: Schedule) -> None:
    for stage in schedule.stages:
        if stage.rounds is not None and stage.rounds > MOST_ROUNDS:
            raise ValueError(
                f"rounds may be at most {MOST_ROUNDS} on this page, got {stage.rounds}"
            )


def _run(entry: CatalogEntry, image: Tensor, chosen: Contender) -> MethodView:
    cost = count_gmacs(entry.model, chosen, image)
    (story,) = tell(entry.model, image, chosen.schedule, chosen.method, names=entry.labels)
    return MethodView(chosen, cost, story)


def parse_selection(values: FormValues, schedule: Schedule | None = None) -> Selection:
    """What the form says, as the browser sent it."""
    model, method, rival, percent = values
    if not (isinstance(model, str) and isinstance(method, str) and isinstance(rival, str)):
        raise ValueError("model and methods are chosen by their names")
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
        return Schedule.from_json(text)
    except RecursionError:
        raise ValueError("this is not a schedule: its JSON is nested too deep") from None
    except TypeError as error:  # a value of the wrong kind: to whoever typed it, all the same
        raise ValueError(str(error)) from None
