"""What a press does: tabs, mistakes, two at once, measuring."""

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
from zerotprune.app import render
from zerotprune.app.catalog import Catalog, CatalogEntry
from zerotprune.app.controller import (
    MAX_BATCH,
    NOT_DIGITS,
    UNEXPECTED,
    Controller,
    StoppedError,
    TabState,
    Worker,
    choose_batch,
    time_methods,
)
from zerotprune.app.uploads import NOT_AN_IMAGE, TOO_LARGE
from zerotprune.app.view_model import PERCENTS, Selection, build_view_model
from zerotprune.data import demo
from zerotprune.data.demo import load_photographs
from zerotprune.methods import ToMe, TopK

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def controller(entry: CatalogEntry, examples: list[tuple[str, Image.Image]]) -> Controller:
    return Controller(Worker(), Catalog([entry], examples[:2]))


def test_a_tab_goes_through_the_page(controller: Controller) -> None:
    tab = TabState()
    opened = controller.select(tab, FORM)
    assert opened.image is not None
    turned = controller.set_budget(tab, ("demo", "zero-tprune", "none", 40))
    assert turned.image is None  # it has not changed
    assert turned.percent is None  # the user's hand may be on it
    schedule = ztp.Schedule((ztp.Stage(6, 0.5),))
    edited = controller.edit(tab, ("demo", "zero-tprune", "none", 40), {"text": schedule.to_json()})
    cost = ztp.gmacs(demo.model(), schedule)
    assert edited.percent == round(100 * cost / ztp.gmacs(demo.model()))
    assert edited.facts is not None
    assert f"{cost:.4f}" in edited.facts
    kept = controller.select(tab, ("demo", "random", "none", 40))
    assert kept.stages == render.render_stages(schedule.by("random"))
    assert controller.set_budget(tab, ("demo", "random", "none", 40)).stages != kept.stages
    assert tab.schedule is None
    measured = controller.measure(tab)
    assert measured is not None
    assert "pending" not in measured
    assert controller.show_example(tab, FORM, {"at": 1}).image != opened.image


def schedule_in(tab: TabState) -> ztp.Schedule:
    assert tab.shown is not None
    return tab.shown.methods[0].schedule


def test_a_file_brings_its_method_along(controller: Controller) -> None:
    tab, stages = TabState(), (ztp.Stage(6, 0.5),)
    filtered = ztp.Schedule(stages, ztp.ZeroTPrune(vhf=None))
    controller.select(tab, ("demo", "tome", "none", 65))
    loaded = controller.edit(tab, ("demo", "tome", "none", 65), {"text": filtered.to_json()})
    assert loaded.method == "zero-tprune"  # the list of methods follows
    assert loaded.stages == render.render_stages(filtered)
    assert loaded.code is not None
    assert "ztp.methods.ZeroTPrune(vhf=None)" in loaded.code
    assert controller.select(tab, FORM).method is None
    assert schedule_in(tab) == filtered  # with its options, as long as the method stays
    controller.select(tab, ("demo", "random", "none", 65))
    assert schedule_in(tab) == filtered.by("random")
    seeded = ztp.Schedule(stages, TopK("random", seed=3))
    text = seeded.to_json()
    assert controller.edit(tab, FORM, {"text": text}).method == "top-k"
    controller.select(tab, ("demo", "top-k", "none", 65))
    assert schedule_in(tab) == seeded
    old = '{"version": 1, "stages": [{"block": 6, "keep": 0.5}]}'
    read = controller.edit(tab, ("demo", "top-k", "none", 65), {"text": old})
    assert read.method == "zero-tprune"  # a file of version 1 is no other method's
    assert schedule_in(tab) == ztp.Schedule(stages)


def test_a_file_that_does_not_fit_changes_nothing(controller: Controller) -> None:
    tab = TabState()
    controller.select(tab, FORM)
    before, bad = tab.shown, ztp.Schedule((ztp.Stage(4, 0.5),), ToMe())
    update = controller.edit(tab, FORM, {"text": bad.to_json()})
    assert 'role="alert"' in update.status
    assert (update.method, update.view, tab.shown) == (None, None, before)


def test_a_cost_beyond_the_slider_leaves_it_at_its_end(controller: Controller) -> None:
    tab = TabState()
    text = ztp.Schedule((ztp.Stage(1, 0.05),)).to_json()
    assert controller.edit(tab, FORM, {"text": text}).percent == PERCENTS[0]


def test_no_file_is_imported_that_the_browser_names(controller: Controller, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    trace = tmp_path / "imported"
    file.write_text(f"open({str(trace)!r}, 'w')")
    name, tab = f"{file}:Mine", TabState()
    text = json.dumps({"version": 2, "method": {"name": name, "options": {}}, "stages": []})
    for update in (
        controller.select(tab, ("demo", name, "none", 65)),
        controller.select(tab, ("demo", "tome", name, 65)),
        controller.edit(tab, FORM, {"text": text}),
        controller.edit(tab, FORM, {"text": text.replace(".py:", "\\u002epy:")}),
    ):
        assert "ethod" in update.status
        assert 'role="alert"' in update.status
        assert update.view is None
    assert not trace.exists()


def test_an_error_leaves_the_tab_as_it_was(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tab = TabState()
    controller.select(tab, FORM)
    before, stage = tab.shown, '{"version": 1, "stages": [{"block": %s}]}'
    for update, fact in (  # a part of the message
        (controller.edit(tab, FORM, {"text": stage % "0"}), "Block"),
        (controller.edit(tab, FORM, {"text": stage % "null"}), "Block"),
        (controller.show_example(tab, FORM, {"at": 99}), "example"),
        (controller.show_example(tab, FORM, {"at": "../x"}), "example"),
        (controller.upload(tab, FORM, {"text": "QUJD"}), NOT_AN_IMAGE),
        (controller.upload(tab, FORM, {"refused": "large"}), TOO_LARGE),
        (controller.select(tab, ("/etc/passwd", "tome", "none", 65)), "demo"),
        (controller.select(tab, ("demo", "no-such", "none", 65)), "method"),
        (controller.select(tab, ("demo", "tome", "no-such", 65)), "method"),
        (controller.select(tab, ("demo", "none", "none", 65)), "method"),
        (controller.set_budget(tab, ("demo", "evit", "none", 25)), "evit"),
        (controller.set_budget(tab, ("demo", "evit", "none", 8)), "25 to 100"),
        (controller.set_budget(tab, ("demo", "evit", "none", float("nan"))), "25 to 100"),
        (controller.set_budget(tab, ("demo", "evit", "none", "65")), "budget"),
        (controller.set_budget(tab, ("demo", ["evit"], "none", 65)), "names"),
    ):
        assert fact in update.status
        assert 'role="alert"' in update.status
        assert update.view is None
        assert tab.shown is before

    def broken(*_: Any) -> None:
        raise RuntimeError("secret: /home/somebody/model.safetensors")

    monkeypatch.setattr("zerotprune.app.controller.build_view_model", broken)
    update = controller.select(tab, FORM)
    assert UNEXPECTED in update.status
    assert "secret" not in update.status
    assert "secret" in caplog.text  # for whoever started the page


def test_an_uploaded_image_with_the_built_in_model(controller: Controller) -> None:
    tab = TabState()
    text = base64.b64encode(encode(Image.effect_noise((300, 200), 60), "JPEG")).decode()
    assert escape(NOT_DIGITS) in controller.upload(tab, FORM, {"text": text}).status
    assert controller.select(tab, FORM).image is None  # it stays
    assert controller.show_example(tab, FORM, {"at": 0}).status == ""


def test_an_uploaded_image_has_a_thumbnail_to_come_back_to(controller: Controller) -> None:
    tab, noise = TabState(), Image.effect_noise((300, 200), 60).convert("RGB")
    assert controller.select(tab, FORM).chooser is not None
    text = base64.b64encode(encode(noise)).decode()
    chooser = controller.upload(tab, FORM, {"text": text}).chooser
    assert chooser is not None
    pressed = re.findall(r'data-at="(\w+)"[^>]*aria-pressed="true"><img src="([^"]*)"', chooser)
    assert pressed == [("uploaded", render.thumbnail_url(noise))]
    uploaded = tab.shown
    assert uploaded is not None
    controller.show_example(tab, FORM, {"at": 1})
    assert tab.shown is not None
    assert tab.shown.input is not uploaded.input
    again = controller.show_example(tab, FORM, {"at": "uploaded"})
    assert tab.shown.input is uploaded.input
    assert again.image is not None
    stranger = controller.show_example(TabState(), FORM, {"at": "uploaded"})
    assert 'role="alert"' in stranger.status


def test_each_model_opens_on_images_that_it_knows(
    entry: CatalogEntry, examples: list[tuple[str, Image.Image]]
) -> None:
    model = timm.create_model("test_vit", num_classes=7)
    other = CatalogEntry("test_vit", model.eval(), custom_weights=True)
    catalog = Catalog([entry, other], examples[:2], load_photographs(3))
    assert catalog.opening == "test_vit"
    assert Catalog([entry], examples[:2], load_photographs(3)).opening == "demo"
    assert list(catalog.examples_for("demo")) == [0, 1]
    assert list(catalog.examples_for("test_vit")) == [2, 3, 4]
    assert list(Catalog([other], examples[:2]).examples_for("test_vit")) == [0, 1]
    controller, tab = Controller(Worker(), catalog), TabState()
    form = ("test_vit", "tome", "none", 80)
    assert "Example: cat" in str(controller.select(tab, form).chooser)
    assert tab.chosen is not None
    assert tab.chosen.example == 2
    assert controller.show_example(tab, form, {"at": 4}).chooser is None
    assert controller.select(tab, ("test_vit", "tome", "none", 70)).chooser is None
    assert tab.chosen.example == 4
    assert "Example: digit" in str(controller.select(tab, ("demo", "tome", "none", 70)).chooser)
    assert tab.chosen.example == 0


def test_a_batch_takes_about_as_long_as_one_image_of_a_larger_model() -> None:
    assert [choose_batch(seconds) for seconds in (1e-6, 0.02, 0.08, 0.1, 9.0)] == [8, 8, 2, 1, 1]


def test_two_tabs_at_once_do_not_disturb_each_other(controller: Controller) -> None:
    alone = [TabState(), TabState()]
    wanted = [("zero-tprune", 40, 0), ("tome", 80, 1)]

    def go(tab: TabState, method: str, percent: int, at: int) -> list[str | None]:
        update = controller.show_example(tab, ("demo", method, "none", percent), {"at": at})
        return [update.view, update.facts, update.stages, update.code]

    expected = [go(tab, *choice) for tab, choice in zip(alone, wanted, strict=True)]
    answers: dict[int, list[list[str | None]]] = {0: [], 1: []}

    def many(index: int, tab: TabState) -> None:
        answers[index] = [go(tab, *wanted[index]) for _ in range(2)]

    threads = [threading.Thread(target=many, args=(index, TabState())) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in (0, 1):
        assert all(answer == expected[index] for answer in answers[index])


def test_every_method_is_timed_until_the_result_is_stale(
    entry: CatalogEntry, image: Image.Image
) -> None:
    shown, worker = (
        build_view_model(entry, entry.prepare(image), Selection("demo", "tome", "evit")),
        Worker(),
    )
    times = time_methods(shown, worker)
    assert times is not None
    assert len(times.milliseconds) == 3
    assert min(times.milliseconds) > 0
    assert 1 <= times.batch <= MAX_BATCH
    assert time_methods(shown, worker, lambda: True) is None
    worker.stop()
    with pytest.raises(StoppedError):
        time_methods(shown, worker)
