"""What happens when somebody touches a control: tabs, mistakes, two at once, measuring."""

from __future__ import annotations

import base64
import json
import re
import threading
from html import escape
from pathlib import Path
from typing import Any

import pytest
import timm
from PIL import Image

import zerotprune as ztp
from tests.app import FORM, encode
from zerotprune.app import controls
from zerotprune.app.catalog import Catalog, CatalogEntry
from zerotprune.app.controller import NOT_DIGITS, UNEXPECTED, Controller, TabState
from zerotprune.app.timing import LARGEST_BATCH, choose_batch, time_methods
from zerotprune.app.uploads import NOT_AN_IMAGE, TOO_LARGE
from zerotprune.app.view_model import PERCENTS, Selection, build_view_model
from zerotprune.app.worker import Stopped, Worker
from zerotprune.data import demo
from zerotprune.data.photographs import load_photographs
from zerotprune.methods import ToMe, TopK

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def controller(entry: CatalogEntry, examples: list[tuple[str, Image.Image]]) -> Controller:
    return Controller(Worker(), Catalog([entry], examples[:2]))


def test_a_tab_goes_through_the_page(controller: Controller) -> None:
    own = TabState()
    opened = controller.select(own, FORM)
    assert opened.image is not None
    turned = controller.set_budget(own, ("demo", "zero-tprune", "none", 40))
    assert turned.image is None  # it has not changed
    assert turned.percent is None  # the user's hand may be on it
    schedule = ztp.Schedule((ztp.Stage(6, 0.5),))
    edited = controller.edit(own, ("demo", "zero-tprune", "none", 40), {"text": schedule.to_json()})
    cost = ztp.gmacs(demo.model(), schedule)
    assert edited.percent == round(100 * cost / ztp.gmacs(demo.model()))
    assert edited.facts is not None
    assert f"{cost:.4f}" in edited.facts
    kept = controller.select(own, ("demo", "random", "none", 40))
    assert kept.stages == controls.render_stages(schedule.by("random"))
    assert controller.set_budget(own, ("demo", "random", "none", 40)).stages != kept.stages
    assert own.schedule is None
    measured = controller.measure(own)
    assert measured is not None
    assert "pending" not in measured
    assert controller.show_example(own, FORM, {"at": 1}).image != opened.image


def schedule_in(tab: TabState) -> ztp.Schedule:
    assert tab.shown is not None
    return tab.shown.methods[0].schedule


def test_a_file_brings_its_method_along(controller: Controller) -> None:
    own, stages = TabState(), (ztp.Stage(6, 0.5),)
    filtered = ztp.Schedule(stages, ztp.ZeroTPrune(vhf=None))
    controller.select(own, ("demo", "tome", "none", 65))
    loaded = controller.edit(own, ("demo", "tome", "none", 65), {"text": filtered.to_json()})
    assert loaded.method == "zero-tprune"  # the list of methods follows
    assert loaded.stages == controls.render_stages(filtered)
    assert loaded.lines is not None
    assert "ztp.methods.ZeroTPrune(vhf=None)" in loaded.lines
    assert controller.select(own, FORM).method is None
    assert schedule_in(own) == filtered  # with its options, as long as the method stays
    controller.select(own, ("demo", "random", "none", 65))
    assert schedule_in(own) == filtered.by("random")
    seeded = ztp.Schedule(stages, TopK("random", seed=3))
    text = seeded.to_json()
    assert controller.edit(own, FORM, {"text": text}).method == "top-k"
    controller.select(own, ("demo", "top-k", "none", 65))
    assert schedule_in(own) == seeded
    old = '{"version": 1, "stages": [{"block": 6, "keep": 0.5}]}'
    read = controller.edit(own, ("demo", "top-k", "none", 65), {"text": old})
    assert read.method == "zero-tprune"  # a file of version 1 is no other method's
    assert schedule_in(own) == ztp.Schedule(stages)


def test_a_file_that_does_not_fit_changes_nothing(controller: Controller) -> None:
    own = TabState()
    controller.select(own, FORM)
    before, bad = own.shown, ztp.Schedule((ztp.Stage(4, 0.5),), ToMe())
    update = controller.edit(own, FORM, {"text": bad.to_json()})
    assert 'role="alert"' in update.status
    assert (update.method, update.view, own.shown) == (None, None, before)


def test_a_cost_beyond_the_slider_leaves_it_at_its_end(controller: Controller) -> None:
    own = TabState()
    text = ztp.Schedule((ztp.Stage(1, 0.05),)).to_json()
    assert controller.edit(own, FORM, {"text": text}).percent == PERCENTS[0]


def test_no_file_is_imported_that_the_browser_names(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise RuntimeError('imported')")
    monkeypatch.setattr("zerotprune.methods._from_file", pytest.fail)
    name, own = f"{file}:Mine", TabState()
    text = json.dumps({"version": 2, "method": {"name": name, "options": {}}, "stages": []})
    for update in (
        controller.select(own, ("demo", name, "none", 65)),
        controller.select(own, ("demo", "tome", name, 65)),
        controller.edit(own, FORM, {"text": text}),
        controller.edit(own, FORM, {"text": text.replace(".py:", "\\u002epy:")}),
    ):
        assert "Unknown method" in update.status


def test_an_error_leaves_the_tab_as_it_was(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = TabState()
    controller.select(own, FORM)
    before, stage = own.shown, '{"version": 1, "stages": [{"block": %s}]}'
    for update, says in (
        (controller.edit(own, FORM, {"text": stage % "0"}), "Block must be"),
        (controller.edit(own, FORM, {"text": stage % "null"}), "whole number"),
        (controller.show_example(own, FORM, {"at": 99}), "There is no such example."),
        (controller.show_example(own, FORM, {"at": "../x"}), "There is no such example."),
        (controller.upload(own, FORM, {"text": "QUJD"}), NOT_AN_IMAGE),
        (controller.upload(own, FORM, {"refused": "large"}), TOO_LARGE),
        (controller.select(own, ("/etc/passwd", "tome", "none", 65)), "The models are demo."),
        (controller.select(own, ("demo", "no-such", "none", 65)), "Unknown method"),
        (controller.select(own, ("demo", "tome", "no-such", 65)), "Unknown method"),
        (controller.select(own, ("demo", "none", "none", 65)), "Unknown method"),
        (controller.set_budget(own, ("demo", "evit", "none", 25)), "GMACs cannot be met by evit"),
        (
            controller.set_budget(own, ("demo", "evit", "none", 8)),
            "The budget goes from 25 to 100 %",
        ),
        (
            controller.set_budget(own, ("demo", "evit", "none", float("nan"))),
            "The budget goes from 25 to 100",
        ),
        (controller.set_budget(own, ("demo", "evit", "none", "65")), "The budget is a number"),
        (controller.set_budget(own, ("demo", ["evit"], "none", 65)), "chosen by their names"),
    ):
        assert says in update.status
        assert 'role="alert"' in update.status
        assert update.view is None
        assert own.shown is before

    def broken(*_: Any) -> None:
        raise RuntimeError("secret: /home/somebody/model.safetensors")

    monkeypatch.setattr("zerotprune.app.controller.build_view_model", broken)
    update = controller.select(own, FORM)
    assert UNEXPECTED in update.status
    assert "secret" not in update.status
    assert "secret" in caplog.text  # for whoever started the page


def test_an_image_of_ones_own_with_the_built_in_model(controller: Controller) -> None:
    own = TabState()
    text = base64.b64encode(encode(Image.effect_noise((300, 200), 60), "JPEG")).decode()
    assert escape(NOT_DIGITS) in controller.upload(own, FORM, {"text": text}).status
    assert controller.select(own, FORM).image is None  # it stays
    assert controller.show_example(own, FORM, {"at": 0}).status == ""


def test_ones_own_image_has_a_thumbnail_to_come_back_to(controller: Controller) -> None:
    own, noise = TabState(), Image.effect_noise((300, 200), 60).convert("RGB")
    assert controller.select(own, FORM).chooser is not None
    text = base64.b64encode(encode(noise)).decode()
    chooser = controller.upload(own, FORM, {"text": text}).chooser
    assert chooser is not None
    pressed = re.findall(r'data-at="(\w+)"[^>]*aria-pressed="true"><img src="([^"]*)"', chooser)
    assert pressed == [("own", controls.thumbnail_url(noise))]
    mine = own.shown
    assert mine is not None
    controller.show_example(own, FORM, {"at": 1})
    assert own.shown is not None
    assert own.shown.input is not mine.input
    again = controller.show_example(own, FORM, {"at": "own"})
    assert own.shown.input is mine.input
    assert again.image is not None
    stranger = controller.show_example(TabState(), FORM, {"at": "own"})
    assert "There is no such example." in stranger.status


def test_each_model_opens_on_images_that_it_knows(
    entry: CatalogEntry, examples: list[tuple[str, Image.Image]]
) -> None:
    model = timm.create_model("test_vit", num_classes=7)
    other = CatalogEntry("test_vit", model.eval(), own_weights=True)
    catalog = Catalog([entry, other], examples[:2], load_photographs(3))
    assert catalog.opening == "test_vit"
    assert Catalog([entry], examples[:2], load_photographs(3)).opening == "demo"
    assert list(catalog.offered("demo")) == [0, 1]
    assert list(catalog.offered("test_vit")) == [2, 3, 4]
    assert list(Catalog([other], examples[:2]).offered("test_vit")) == [0, 1]
    controller, own = Controller(Worker(), catalog), TabState()
    form = ("test_vit", "tome", "none", 80)
    assert "Example: cat" in str(controller.select(own, form).chooser)
    assert own.chosen is not None
    assert own.chosen.example == 2
    assert controller.show_example(own, form, {"at": 4}).chooser is None
    assert controller.select(own, ("test_vit", "tome", "none", 70)).chooser is None
    assert own.chosen.example == 4
    assert "Example: digit" in str(controller.select(own, ("demo", "tome", "none", 70)).chooser)
    assert own.chosen.example == 0


def test_a_batch_takes_about_as_long_as_one_image_of_a_larger_model() -> None:
    assert [choose_batch(each) for each in (1e-6, 0.02, 0.08, 0.1, 9.0)] == [8, 8, 2, 1, 1]


def test_two_tabs_at_once_do_not_disturb_each_other(controller: Controller) -> None:
    alone = [TabState(), TabState()]
    wanted = [("zero-tprune", 40, 0), ("tome", 80, 1)]

    def go(tab: TabState, method: str, percent: int, at: int) -> list[str | None]:
        update = controller.show_example(tab, ("demo", method, "none", percent), {"at": at})
        return [update.view, update.facts, update.stages, update.lines]

    expected = [go(own, *each) for own, each in zip(alone, wanted, strict=True)]
    answers: dict[int, list[list[str | None]]] = {0: [], 1: []}

    def many(who: int, tab: TabState) -> None:
        answers[who] = [go(tab, *wanted[who]) for _ in range(4)]

    threads = [threading.Thread(target=many, args=(who, TabState())) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for who in (0, 1):
        assert all(each == expected[who] for each in answers[who])


def test_every_way_is_measured_and_stops_when_it_is_stale(
    entry: CatalogEntry, image: Image.Image
) -> None:
    shown, worker = (
        build_view_model(entry, entry.prepare(image), Selection("demo", "tome", "evit")),
        Worker(),
    )
    times = time_methods(shown, worker)
    assert times is not None
    assert len(times.milliseconds) == 3
    assert all(each > 0 for each in times.milliseconds)
    assert 1 <= times.batch <= LARGEST_BATCH
    assert time_methods(shown, worker, lambda: True) is None
    worker.stop()
    with pytest.raises(Stopped):
        time_methods(shown, worker)
