"""What happens when somebody touches a control: each tab has its state, all share the catalog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps

from ..methods import DEFAULT, name_of
from ..schedule import Schedule
from . import controls, panels
from .catalog import BUILT_IN, Catalog, ModelInput
from .snippet import write_python
from .timing import time_methods
from .uploads import TOO_LARGE, read_upload
from .view_model import (
    PERCENTS,
    FormValues,
    Selection,
    ViewModel,
    build_view_model,
    parse_schedule,
    parse_selection,
)
from .worker import Stopped, Worker

EventData = Mapping[str, object]  # what our own controls send along
LOG = logging.getLogger(__name__)
METHOD, RIVAL, PERCENT = DEFAULT, "tome", 65
UNEXPECTED = "Something went wrong here; your image and settings are as they were."
NOT_DIGITS = (
    "The built-in model reads one digit among clutter. On other images you see how it prunes; "
    "what it predicts means nothing."
)


@dataclass(frozen=True)
class ChosenImage:
    """What a tab looks at: an example by its number, or an image of the user's own."""

    inputs: dict[str, ModelInput]  # by model
    example: int | None = None
    thumbnail: str | None = None  # of the user's own, as a data URL


@dataclass
class TabState:
    """What one tab shows. Nobody else sees it."""

    chosen: ChosenImage | None = None
    own: ChosenImage | None = None  # the user's last image, to come back to
    schedule: Schedule | None = None  # the user's own stages, where the slider does not rule
    shown: ViewModel | None = None
    turn: int = 0  # counts the requests: work for an older one is not finished
    measured: int = 0  # the turn whose milliseconds are on the page


@dataclass(frozen=True)
class PageUpdate:
    """The page's parts after a change; None: as before."""

    status: str
    image: str | None = None
    view: str | None = None
    facts: str | None = None
    stages: str | None = None
    lines: str | None = None
    percent: int | None = None
    chooser: str | None = None
    method: str | None = None


def _answers(
    handle: Callable[[Controller, TabState, FormValues, EventData], PageUpdate],
) -> Callable[..., PageUpdate]:
    """The worker handles one event after the other; what is wrong with it is said on the page."""

    @wraps(handle)
    def answer(
        self: Controller, tab: TabState, values: FormValues, sent: EventData | None = None
    ) -> PageUpdate:
        tab.turn += 1
        try:
            return self.worker.run(lambda: handle(self, tab, values, sent or {}))
        except ValueError as error:
            return PageUpdate(controls.render_status(controls.as_sentence(error), "error"))
        except Stopped:
            return PageUpdate("")
        except Exception:  # what it is concerns whoever started the page, not whoever looks at it
            LOG.exception("a request failed")
            return PageUpdate(controls.render_status(UNEXPECTED, "error"))

    return answer


class Controller:
    """Answers each control of a tab; the worker computes for all tabs in turn."""

    def __init__(self, worker: Worker, catalog: Catalog) -> None:
        self.worker, self.catalog = worker, catalog

    @_answers
    def select(self, tab: TabState, values: FormValues, _: EventData) -> PageUpdate:
        """Another model, method or rival; or the page has just been opened."""
        return self._update(tab, parse_selection(values, tab.schedule))

    @_answers
    def set_budget(self, tab: TabState, values: FormValues, _: EventData) -> PageUpdate:
        """Another budget: it replaces the user's own stages."""
        return self._update(tab, parse_selection(values))

    @_answers
    def edit(self, tab: TabState, values: FormValues, sent: EventData) -> PageUpdate:
        """The user's own stages, from the table or from a file; their method comes with them."""
        schedule = parse_schedule(sent.get("text"))
        method = name_of(schedule.method)
        selection = replace(parse_selection(values, schedule), method=method)
        return replace(self._update(tab, selection), method=method)

    @_answers
    def show_example(self, tab: TabState, values: FormValues, sent: EventData) -> PageUpdate:
        """One of the example images, or the user's own once more."""
        at = sent.get("at")
        chosen = tab.own if at == controls.OWN and tab.own else self._choose_example(at)
        return self._update(tab, parse_selection(values, tab.schedule), chosen)

    @_answers
    def upload(self, tab: TabState, values: FormValues, sent: EventData) -> PageUpdate:
        """The user's own image, as the browser sent it."""
        if sent.get("refused") == "large":
            raise ValueError(TOO_LARGE)
        image = read_upload(sent.get("text"))
        thumbnail = controls.thumbnail_url(image)
        chosen = ChosenImage(self.catalog.prepare(image), thumbnail=thumbnail)
        return self._update(tab, parse_selection(values, tab.schedule), chosen)

    def measure(self, tab: TabState) -> str | None:
        """The facts with milliseconds; None if there is something newer to look at."""
        shown, turn = tab.shown, tab.turn
        if shown is None or tab.measured == turn:
            return None
        times = None
        try:
            times = time_methods(shown, self.worker, lambda: tab.turn != turn)
        except Stopped:
            pass
        except Exception:
            LOG.exception("measuring failed")
        if times is None:
            return None
        tab.measured = turn
        return panels.render_facts(shown, times)

    def chooser(self, model: str, tab: TabState | None = None) -> str:
        """The images that a tab offers with a model; None: as the page opens."""
        offered = {at: self.catalog.examples[at] for at in self.catalog.offered(model)}
        if tab is None or tab.chosen is None:
            return controls.render_chooser(offered, next(iter(offered), None))
        own = None if tab.own is None else tab.own.thumbnail
        return controls.render_chooser(offered, tab.chosen.example, own)

    def _choose_example(self, at: object) -> ChosenImage:
        inputs = self.catalog.prepare_example(at)
        assert isinstance(at, int)
        return ChosenImage(inputs, at)

    def _suit(self, chosen: ChosenImage | None, model: str) -> ChosenImage:
        """The image as it was, unless it was an example that is not for this model."""
        offered = self.catalog.offered(model)
        if chosen is not None and (chosen.example is None or chosen.example in offered):
            return chosen
        return self._choose_example(offered[0])

    def _update(
        self, tab: TabState, selection: Selection, chosen: ChosenImage | None = None
    ) -> PageUpdate:
        """The tab changes only once all has gone well."""
        entry, before = self.catalog.entry(selection.model), tab.shown
        chosen = chosen or self._suit(tab.chosen, entry.name)
        shown = build_view_model(entry, chosen.inputs[entry.name], selection, before)
        same_image = before is not None and before.input is shown.input
        uploaded = chosen.example is None
        same_choice = before is not None and before.entry is entry and not uploaded
        tab.chosen, tab.own = chosen, chosen if uploaded else tab.own
        tab.shown, tab.schedule = shown, shown.selection.schedule
        notes = [*shown.notes, *([NOT_DIGITS] if uploaded and entry.name == BUILT_IN else [])]
        return PageUpdate(
            controls.render_status(" ".join(map(controls.as_sentence, notes))),
            None if same_image else panels.render_image(shown),
            panels.render_view(shown),
            panels.render_facts(shown),
            controls.render_stages(shown.methods[0].schedule),
            write_python(shown),
            # A slider that moves under the hand cannot be set: it follows own stages alone.
            None if selection.schedule is None else _on_slider(shown.cost),
            None if same_choice or same_image else self.chooser(entry.name, tab),
        )


def _on_slider(cost: float) -> int:
    low, high = PERCENTS
    return min(max(round(100 * cost), low), high)
