"""Handle the page's events: each tab has its own state, and one worker computes for all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..clock import now, race
from ..methods import DEFAULT, name_of
from ..pruning import prune_
from ..schedule import Schedule
from ..surgery import sharing_copy
from . import render
from .catalog import BUILT_IN, Catalog, ModelInput
from .uploads import TOO_LARGE, read_upload
from .view_model import (
    PERCENTS,
    FormValues,
    Selection,
    Times,
    ViewModel,
    build_view_model,
    parse_schedule,
    parse_selection,
    write_python,
)

LOG = logging.getLogger(__name__)
EventData = Mapping[str, object]  # what our own controls send along
T = TypeVar("T")

METHOD, RIVAL, PERCENT = DEFAULT, "tome", 65
UNEXPECTED = "Something went wrong here; your image and settings are as they were."
NOT_DIGITS = (
    "The built-in model reads one digit among clutter. On other images you see how it prunes, "
    "but its predictions mean nothing."
)
NO_EXAMPLE = "no such example"

MAX_TIMED_ROUNDS, MIN_TIMED_ROUNDS = 15, 5
MAX_TIMED_SECONDS = 1.5  # after MIN_TIMED_ROUNDS
MAX_CALL_SECONDS = 0.16  # of the unpruned model, about
MAX_BATCH = 8


class StoppedError(Exception):
    """The page is being closed, so there will be no result."""


class Worker:
    """Computes for all tabs in turn, in one thread, so that no tab disturbs another's timing.

    torch keeps a team of threads for every thread that calls it, and on two cores two teams halve
    the speed. One core is left to the browser: without it, 10 ms may become a second.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "worker", initializer=_leave_a_core)
        self._stopped = False

    def run(self, work: Callable[[], T]) -> T:
        """Wait for the result; errors in the worker are raised here."""
        try:
            return self._thread.submit(work).result()
        except (CancelledError, RuntimeError):
            if self._stopped:
                raise StoppedError from None
            raise

    def stop(self) -> None:
        self._stopped = True
        self._thread.shutdown(cancel_futures=True)


def _leave_a_core() -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))


@dataclass(frozen=True)
class ChosenImage:
    """The image of a tab: an example or an upload."""

    inputs: dict[str, ModelInput]  # by model
    example: int | None = None  # None: uploaded
    thumbnail: str | None = None  # of an uploaded image, as a data URL


@dataclass
class TabState:
    """What one tab shows. No other tab sees it."""

    chosen: ChosenImage | None = None
    uploaded: ChosenImage | None = None  # the last one, to come back to
    schedule: Schedule | None = None  # edited by the user; None: the slider decides
    shown: ViewModel | None = None
    turn: int = 0  # counts events: a measurement for an older one is abandoned
    measured: int = 0  # the turn whose milliseconds are on the page


@dataclass(frozen=True)
class PageUpdate:
    """The page's parts after an event; None leaves a part as it is."""

    status: str
    image: str | None = None
    view: str | None = None
    facts: str | None = None
    stages: str | None = None
    code: str | None = None
    percent: int | None = None
    chooser: str | None = None
    method: str | None = None


def _on_worker(
    handle: Callable[[Controller, TabState, FormValues, EventData], PageUpdate],
) -> Callable[..., PageUpdate]:
    """Handle an event on the worker, and show its errors on the page."""

    @wraps(handle)
    def answer(
        self: Controller, tab: TabState, values: FormValues, event: EventData | None = None
    ) -> PageUpdate:
        tab.turn += 1
        try:
            return self.worker.run(lambda: handle(self, tab, values, event or {}))
        except ValueError as error:
            return PageUpdate(render.render_status(error, error=True))
        except StoppedError:
            return PageUpdate("")
        except Exception:  # the details are for the person who runs the page
            LOG.exception("a request failed")
            return PageUpdate(render.render_status(UNEXPECTED, error=True))

    return answer


class Controller:
    """Answers every control of every tab."""

    def __init__(self, worker: Worker, catalog: Catalog) -> None:
        self.worker, self.catalog = worker, catalog

    @_on_worker
    def select(self, tab: TabState, values: FormValues, _: EventData) -> PageUpdate:
        """Show another model, method or rival, or the page as it opens."""
        return self._update(tab, parse_selection(values, tab.schedule))

    @_on_worker
    def set_budget(self, tab: TabState, values: FormValues, _: EventData) -> PageUpdate:
        """Apply another budget. It replaces edited stages."""
        return self._update(tab, parse_selection(values))

    @_on_worker
    def edit(self, tab: TabState, values: FormValues, event: EventData) -> PageUpdate:
        """Apply stages from the table or from a file, with their method."""
        schedule = parse_schedule(event.get("text"))
        method = name_of(schedule.method)
        selection = replace(parse_selection(values, schedule), method=method)
        return replace(self._update(tab, selection), method=method)

    @_on_worker
    def show_example(self, tab: TabState, values: FormValues, event: EventData) -> PageUpdate:
        """Show an example, or the uploaded image again."""
        key = event.get("at")
        if key == render.UPLOADED and tab.uploaded is not None:
            chosen = tab.uploaded
        elif isinstance(key, int) and 0 <= key < len(self.catalog.examples):
            chosen = self._choose_example(key)
        else:
            raise ValueError(NO_EXAMPLE)
        return self._update(tab, parse_selection(values, tab.schedule), chosen)

    @_on_worker
    def upload(self, tab: TabState, values: FormValues, event: EventData) -> PageUpdate:
        """Show an image that the browser sent."""
        if event.get("refused") == "large":
            raise ValueError(TOO_LARGE)
        image = read_upload(event.get("text"))
        thumbnail = render.thumbnail_url(image)
        chosen = ChosenImage(self.catalog.prepare(image), thumbnail=thumbnail)
        return self._update(tab, parse_selection(values, tab.schedule), chosen)

    def measure(self, tab: TabState) -> str | None:
        """Return the facts with milliseconds, or None if the tab shows something newer by now."""
        shown, turn = tab.shown, tab.turn
        if shown is None or tab.measured == turn:
            return None
        times = None
        try:
            times = time_methods(shown, self.worker, lambda: tab.turn != turn)
        except StoppedError:
            pass
        except Exception:
            LOG.exception("measuring failed")
        if times is None:
            return None
        tab.measured = turn
        return render.render_facts(shown, times)

    def chooser(self, model: str, tab: TabState | None = None) -> str:
        """Render the images that a tab offers with a model; None: as the page opens."""
        examples = {
            index: self.catalog.examples[index] for index in self.catalog.examples_for(model)
        }
        if tab is None or tab.chosen is None:
            return render.render_chooser(examples, next(iter(examples), None))
        uploaded = None if tab.uploaded is None else tab.uploaded.thumbnail
        return render.render_chooser(examples, tab.chosen.example, uploaded)

    def _choose_example(self, index: int) -> ChosenImage:
        return ChosenImage(self.catalog.prepare_example(index), index)

    def _suit(self, chosen: ChosenImage | None, model: str) -> ChosenImage:
        """Keep the image, unless it is an example that is not for this model."""
        examples = self.catalog.examples_for(model)
        if chosen is not None and (chosen.example is None or chosen.example in examples):
            return chosen
        return self._choose_example(examples[0])

    def _update(
        self, tab: TabState, selection: Selection, chosen: ChosenImage | None = None
    ) -> PageUpdate:
        """Compute what to show, and change the tab only once nothing can fail."""
        entry, before = self.catalog.entry(selection.model), tab.shown
        chosen = chosen or self._suit(tab.chosen, entry.name)
        shown = build_view_model(entry, chosen.inputs[entry.name], selection, before)
        same_image = before is not None and before.input is shown.input
        uploaded = chosen.example is None
        same_choice = before is not None and before.entry is entry and not uploaded
        tab.chosen, tab.uploaded = chosen, chosen if uploaded else tab.uploaded
        tab.shown, tab.schedule = shown, shown.selection.schedule
        notes = [*shown.notes, *([NOT_DIGITS] if uploaded and entry.name == BUILT_IN else [])]
        return PageUpdate(
            status=render.render_status(*notes),
            image=None if same_image else render.render_image(shown),
            view=render.render_view(shown),
            facts=render.render_facts(shown),
            stages=render.render_stages(shown.methods[0].schedule),
            code=write_python(shown),
            # The slider follows edited stages alone: it must not move under the user's hand.
            percent=None if selection.schedule is None else _slider_percent(shown.cost),
            chooser=None if same_choice or same_image else self.chooser(entry.name, tab),
        )


def _slider_percent(cost: float) -> int:
    low, high = PERCENTS
    return min(max(round(100 * cost), low), high)


class _StaleError(Exception):
    """The page shows something else by now."""


def time_methods(
    shown: ViewModel, worker: Worker, is_stale: Callable[[], bool] = lambda: False
) -> Times | None:
    """Time the unpruned model and the methods in turn, on the image that the page shows.

    A small model takes as long to start its operations as to compute one image, so it gets a batch
    of copies. The worker does one call at a time: a user who moves a slider waits for one at most.

    Returns:
        Medians, or None as soon as `is_stale` says that the page shows something else.
    """
    models = worker.run(partial(_build_models, shown))

    def time_calls(images: Tensor, model: nn.Module, repeat: int) -> float:
        seconds = 0.0
        for _ in range(repeat):
            if is_stale():
                raise _StaleError
            seconds += worker.run(partial(_time_call, model, images))
        return seconds

    try:
        image = shown.input.tensor
        time_calls(image, models[0], 1)  # caches are cold
        batch = choose_batch(time_calls(image, models[0], 1))
        clock = partial(time_calls, image.expand(batch, -1, -1, -1).contiguous())
        started = now("cpu")
        for timings in race(models, MAX_TIMED_ROUNDS, clock):
            enough = len(timings[0]) >= MIN_TIMED_ROUNDS
            if enough and now("cpu") - started > MAX_TIMED_SECONDS:
                break
    except _StaleError:
        return None
    return Times([1e3 * taken.median / batch for taken in timings], batch)


def choose_batch(seconds: float) -> int:
    """Return how many images to time at once if one takes the unpruned model this long.

    >>> [choose_batch(seconds) for seconds in (0.01, 0.05, 0.5)]
    [8, 3, 1]
    """
    return min(MAX_BATCH, max(1, int(MAX_CALL_SECONDS / seconds)))


def _build_models(shown: ViewModel) -> list[nn.Module]:
    unpruned = shown.entry.model
    pruned = [prune_(sharing_copy(unpruned), method.schedule) for method in shown.methods]
    return [sharing_copy(unpruned), *pruned]


@torch.inference_mode()
def _time_call(model: nn.Module, images: Tensor) -> float:
    started = now("cpu")
    model(images)
    return now("cpu") - started
