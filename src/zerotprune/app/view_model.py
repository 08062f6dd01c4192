"""What is on the screen for a choice of model, method and budget: no browser, no page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..backbones import backbone
from ..budgets.contenders import METHODS, Contender, contender, measured_gmacs, method_named
from ..measure.modes import sharing_copy
from ..methods import Method
from ..plan import Plan
from ..pruning import gmacs
from ..schedule import Schedule
from ..show.story import Story, tell
from .catalog import Offer, Sight

NO_RIVAL = "none"
PERCENTS = (25, 100)  # that the dial goes through
MOST_ROUNDS = 200  # enough for any graph; a stranger's million would keep the machine busy
MOST_TEXT = 64 * 1024


Controls = Sequence[object]  # model, method, rival and percent


@dataclass(frozen=True)
class Choice:
    """What the controls say. With `schedule`, the stages are the user's own and the dial rests."""

    model: str
    method: str
    rival: str = NO_RIVAL
    share: float = 0.65  # of the unpruned GMACs
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Side:
    """One method: what it is set to, what it costs, what it did to the picture."""

    contender: Contender
    gmacs: float
    story: Story

    @property
    def left(self) -> int:
        """Patch tokens after the last stage that other blocks see."""
        return self.story.stages[-1].kept if self.story.stages else self.story.patches


@dataclass(frozen=True)
class Screen:
    """All that is shown."""

    choice: Choice
    offer: Offer
    sight: Sight
    sides: tuple[Side, ...]  # the chosen method and, where there is one, the rival
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Of the unpruned cost, as it came out."""
        return self.sides[0].gmacs / self.offer.unpruned


def look(offer: Offer, sight: Sight, choice: Choice, before: Screen | None = None) -> Screen:
    """Work out a screen. `before` is the one that it takes the place of.

    Raises ValueError with one sentence where the choice cannot be followed. The offered model is
    left alone: all that prunes does so on a copy that shares its weights.
    """
    for name in (choice.method, *([] if choice.rival == NO_RIVAL else [choice.rival])):
        if name not in METHODS:
            method_named(name)  # says which there are
    notes = list[str]()
    chosen, note = _chosen(offer, sight.image, choice, before)
    if note:
        notes.append(note)
        choice = replace(choice, schedule=None)
    first = _side(offer, sight.image, chosen)
    sides = [first]
    if choice.rival != NO_RIVAL:
        try:
            rival = _at_budget(offer, choice.rival, first.gmacs, sight.image)
            sides.append(_side(offer, sight.image, rival))
        except ValueError as error:
            notes.append(f"No second method: {error}")
    if chosen.method.adaptive:
        notes.append(
            f"How many patches {chosen.name} keeps depends on the picture, and its setting is part "
            "of the method: the Python lines hold it, the schedule does not."
        )
    return Screen(choice, offer, sight, tuple(sides), tuple(notes))


def _chosen(
    offer: Offer, image: Tensor, choice: Choice, before: Screen | None
) -> tuple[Contender, str]:
    """The chosen method, set; and what the user has to know about it, if anything."""
    if choice.schedule is None:
        return _at_budget(offer, choice.method, choice.share * offer.unpruned, image), ""
    method = _as_it_was(choice.method, before)
    _check_rounds(choice.schedule)
    try:
        Plan(choice.schedule, method, backbone(offer.model).geometry).check()
    except ValueError as error:
        moved = before is not None and (before.choice.method, before.offer.name) != (
            choice.method,
            offer.name,
        )
        if not moved:
            raise
        # The stages were made for another method or model: keep the budget instead.
        set_anew = _at_budget(offer, choice.method, choice.share * offer.unpruned, image)
        return set_anew, f"Your stages do not fit here ({error}): the dial took over."
    return Contender(choice.method, choice.schedule, method), ""


def _at_budget(offer: Offer, name: str, budget: float, image: Tensor) -> Contender:
    if method_named(name).adaptive:  # runs the model, so not the one that others are using
        return contender(name, sharing_copy(offer.model), budget, image)
    return contender(name, offer.model, budget)


def _as_it_was(name: str, before: Screen | None) -> Method:
    """The method with the settings that it has on the screen now, else with its defaults."""
    if before is not None and before.sides[0].contender.name == name:
        return before.sides[0].contender.method
    return method_named(name)


def _check_rounds(schedule: Schedule) -> None:
    for stage in schedule.stages:
        if stage.rounds is not None and stage.rounds > MOST_ROUNDS:
            raise ValueError(
                f"rounds may be at most {MOST_ROUNDS} on this page, got {stage.rounds}"
            )


def _side(offer: Offer, image: Tensor, chosen: Contender) -> Side:
    if chosen.method.adaptive:
        plan = Plan(chosen.schedule, chosen.method, backbone(offer.model).geometry)
        cost = measured_gmacs(sharing_copy(offer.model), plan, image)
    else:
        cost = gmacs(offer.model, chosen.schedule, chosen.method)
    story = tell(offer.model, image, chosen.schedule, chosen.method, names=offer.labels)[0]
    return Side(chosen, cost, story)


def read_choice(controls: Controls, schedule: Schedule | None = None) -> Choice:
    """What the controls say, as the browser sent it."""
    model, method, rival, percent = controls
    if not (isinstance(model, str) and isinstance(method, str) and isinstance(rival, str)):
        raise ValueError("model and methods are chosen by their names")
    if isinstance(percent, bool) or not isinstance(percent, int | float):
        raise ValueError(f"the budget is a number, got {percent!r}")
    low, high = PERCENTS
    if not low <= percent <= high:
        raise ValueError(f"the budget goes from {low} to {high} % of the unpruned model's cost")
    return Choice(model, method, rival, percent / 100, schedule)


def read_stages(text: object) -> Schedule:
    """A schedule from the page: typed into the table, or a file that was loaded."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ValueError("this is not a schedule: a JSON text of at most 64 kB is wanted")
    try:
        return Schedule.from_json(text)
    except RecursionError:
        raise ValueError("this is not a schedule: its JSON is nested too deep") from None
    except TypeError as error:  # a value of the wrong kind: to whoever typed it, all the same
        raise ValueError(str(error)) from None


def find(offers: Mapping[str, Offer], name: object) -> Offer:
    """An offered model: a name that is not on the list is never looked up anywhere."""
    if not isinstance(name, str) or name not in offers:
        raise ValueError(f"the models are {', '.join(offers)}")
    return offers[name]
