"""What the page shows agrees with the API and with the Python code beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

import zerotprune as ztp
from tests.thorough import thorough
from zerotprune.app import render
from zerotprune.app.catalog import CatalogEntry
from zerotprune.app.view_model import (
    MAX_OPTION,
    MAX_ROUNDS,
    Selection,
    build_view_model,
    parse_schedule,
    write_python,
)
from zerotprune.budgets.solving import measured_gmacs
from zerotprune.data import demo
from zerotprune.methods import ATS, name_of, names

pytestmark = pytest.mark.usefixtures("one_thread")


#: one that folds, that matches, that votes, that ranks, that chooses by the image
FEW = ("fold", "tome", "zero-tprune", "evit", "ats")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FEW else pytest.param(name, marks=thorough)
        for name in names()
        if name != "diffrate"
    ],
)
def test_every_method_agrees_with_the_api_and_with_its_python_code(
    entry: CatalogEntry, image: Image.Image, name: str
) -> None:
    prepared = entry.prepare(image)
    shown = build_view_model(entry, prepared, Selection("demo", name, cost=0.6))
    (method,) = shown.methods
    expected = planned = ztp.gmacs(entry.model, method.schedule)
    if method.schedule.method.adaptive:
        expected = measured_gmacs(demo.model(), method.schedule, prepared.tensor)
    assert method.gmacs == expected == pytest.approx(0.6 * ztp.gmacs(entry.model), rel=0.0101)
    assert f'data-value="{expected!r}">{expected:.4f}<' in render.render_facts(shown)
    scope: dict[str, Any] = {"images": prepared.tensor}
    with torch.inference_mode():
        before = entry.model(prepared.tensor).softmax(-1)[0]
        exec(write_python(shown), scope)
    assert scope["schedule"] == method.schedule
    assert ztp.gmacs(scope["model"]) == planned
    for predictions, shares in (
        (method.story.before, before),
        (method.story.after, _shares(scope)),
    ):
        assert predictions[0].label == f"digit {shares.argmax().item()}"
        assert predictions[0].share == pytest.approx(shares.max().item(), abs=1e-5)


def _shares(scope: dict[str, Any]) -> torch.Tensor:
    shares: torch.Tensor = scope["logits"].softmax(-1)[0]
    return shares


def test_the_code_of_a_rival_comes_last(entry: CatalogEntry, image: Image.Image) -> None:
    shown = build_view_model(entry, entry.prepare(image), Selection("demo", "random", "evit", 0.6))
    scope: dict[str, Any] = {"images": shown.input.tensor}
    exec(write_python(shown), scope)
    assert scope["schedule"] == shown.methods[1].schedule
    assert shown.methods[1].gmacs == pytest.approx(shown.methods[0].gmacs, rel=0.0101)


def test_edited_stages_and_mistakes_in_them(entry: CatalogEntry, image: Image.Image) -> None:
    prepared = entry.prepare(image)
    edited = ztp.Schedule((ztp.Stage(4, 0.5, 7, 3),))
    shown = build_view_model(
        entry, prepared, Selection("demo", "zero-tprune", schedule=parse_schedule(edited.to_json()))
    )
    assert shown.methods[0].schedule == edited
    assert shown.methods[0].gmacs == ztp.gmacs(entry.model, edited)
    for schedule, fact in (
        (ztp.Schedule((ztp.Stage(12, 0.5),)), "1 to 11"),
        (ztp.Schedule((ztp.Stage(3, 0.001),)), "patch"),
        (ztp.Schedule((ztp.Stage(3, 0.5, 0, 1000),)), f"rounds.*{MAX_ROUNDS}"),
        (ztp.Schedule((ztp.Stage(3),), ATS(10**9)), f"samples.*{MAX_OPTION}"),
    ):
        with pytest.raises(ValueError, match=fact):
            build_view_model(
                entry, prepared, Selection("demo", name_of(schedule.method), schedule=schedule)
            )
    for text, fact in (
        ("[" * 100_000, "64 kB"),
        ("[" * 60_000, "nested"),
        ("{", "JSON"),
        (None, "JSON"),
    ):
        with pytest.raises(ValueError, match=fact):
            parse_schedule(text)


def test_stages_that_another_method_cannot_follow_give_way_to_the_slider(
    entry: CatalogEntry, image: Image.Image
) -> None:
    prepared, edited = entry.prepare(image), ztp.Schedule((ztp.Stage(4, 0.5),))
    chosen = Selection("demo", "zero-tprune", cost=0.7, schedule=edited)
    first = build_view_model(entry, prepared, chosen)
    then = build_view_model(entry, prepared, replace(chosen, method="tome"), first)
    assert then.selection.schedule is None
    assert len(then.notes) == 1
    assert then.cost == pytest.approx(0.7, rel=0.0101)
    kept = build_view_model(entry, prepared, replace(chosen, method="random"), first)
    assert kept.methods[0].schedule == edited.by("random")


def test_a_budget_of_all_prunes_nothing(entry: CatalogEntry, image: Image.Image) -> None:
    shown = build_view_model(
        entry, entry.prepare(image), Selection("demo", "zero-tprune", cost=1.0)
    )
    assert shown.methods[0].story.stages == []
    assert shown.methods[0].story.before == shown.methods[0].story.after
    assert shown.methods[0].tokens_left == 196
    assert "nothing is pruned" in write_python(shown)
    assert 'data-blocks="[0]"' in render.render_view(shown)


def test_models_of_other_shapes_and_without_a_head(
    image: Image.Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    bare = CatalogEntry("test_vit", timm.create_model("test_vit", num_classes=0).eval())
    shown = build_view_model(
        bare, bare.prepare(image), Selection("test_vit", "zero-tprune", "slicing", 0.7)
    )
    assert shown.methods[0].story.grid == (10, 10)
    assert render.render_view(shown).count("no head") == 3
    for name in ('torchvision:vit"b', "./folder"):
        if name.startswith("."):
            ztp.save(bare.model, name)
        code = write_python(replace(shown, entry=replace(bare, name=name)))
        assert f"model = load({json.dumps(name)}, pretrained=True)" in code
        assert "timm" not in code
    pooled = CatalogEntry("pooled", timm.create_model("test_vit", global_pool="avg").eval())
    shown = build_view_model(
        pooled, pooled.prepare(image), Selection("pooled", "zero-tprune", "tome", 0.7)
    )
    assert len(shown.methods) == 2
    assert shown.notes == ()
    bare = CatalogEntry(
        "no CLS", timm.create_model("test_vit", class_token=False, global_pool="avg").eval()
    )
    shown = build_view_model(
        bare, bare.prepare(image), Selection("no CLS", "zero-tprune", "evit", 0.7)
    )
    assert len(shown.methods) == 1
    assert "CLS" in shown.notes[0]
