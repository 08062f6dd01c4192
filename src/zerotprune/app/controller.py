"""What happens when somebody touches a control: each tab has its state, all share the catalog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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


@dataclass
class TabState:
    """What one tab shows. Nobody else sees it."""

    inputs: dict[str, ModelInput] = field(default_factory=dict)  # its image, by model
    uploaded: bool = False
    schedule: Schedule | None = None  # the user's own stages, where the slider does not rule
    shown: ViewModel | None = None
    turn: int = 0  # counts the requests: work for an older one is not finished


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
        """One of the example images."""
        inputs = self.catalog.prepare_example(sent.get("at"))
        return self._update(tab, parse_selection(values, tab.schedule), inputs, uploaded=False)

    @_answers
    def upload(self, tab: TabState, values: FormValues, sent: EventData) -> PageUpdate:
        """The user's own image, as the browser sent it."""
        if sent.get("refused") == "large":
            raise ValueError(TOO_LARGE)
        inputs = self.catalog.prepare(read_upload(sent.get("text")))
        return self._update(tab, parse_selection(values, tab.schedule), inputs, uploaded=True)

    def measure(self, tab: TabState) -> str | None:
        """The facts with milliseconds; None if there is something newer to look at."""
        shown, turn = tab.shown, tab.turn
        if shown is None:
            return None
        times = None
        try:
            times = time_methods(shown, self.worker, lambda: tab.turn != turn)
        except Stopped:
            pass
        except Exception:
            LOG.exception("measuring failed")
        return None if times is None else panels.render_facts(shown, times)

    def _update(
        self,
        tab: TabState,
        selection: Selection,
        inputs: dict[str, ModelInput] | None = None,
        uploaded: bool | None = None,
    ) -> PageUpdate:
        """The tab changes only once all has gone well."""
        entry, before = self.catalog.entry(selection.model), tab.shown
        inputs = inputs or tab.inputs or self.catalog.prepare_example(0)
        shown = build_view_model(entry, inputs[entry.name], selection, before)
        same_image = before is not None and before.input is shown.input
        tab.inputs, tab.shown, tab.schedule = inputs, shown, shown.selection.schedule
        tab.uploaded = tab.uploaded if uploaded is None else uploaded
        notes = [*shown.notes, *([NOT_DIGITS] if tab.uploaded and entry.name == BUILT_IN else [])]
        return PageUpdate(
            controls.render_status(" ".join(map(controls.as_sentence, notes))),
            None if same_image else panels.render_image(shown),
            panels.render_view(shown),
            panels.render_facts(shown),
            controls.render_stages(shown.methods[0].schedule),
            write_python(shown),
            # A slider that moves under the hand cannot be set: it follows own stages alone.
            None if selection.schedule is None else _on_slider(shown.cost),
        )


def _on_slider(cost: float) -> int:
    low, high = PERCENTS
    return min(max(round(100 * cost), low), high)
