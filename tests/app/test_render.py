"""The page as HTML."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from PIL import Image

from zerotprune.app import render
from zerotprune.app.catalog import CatalogEntry
from zerotprune.app.view_model import Selection, Times, ViewModel, build_view_model
from zerotprune.show.figure import overlay
from zerotprune.show.story import MARKS, Mark

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def shown(entry: CatalogEntry, image: Image.Image) -> ViewModel:
    selection = Selection("demo", "zero-tprune", "tome", cost=0.5)
    return build_view_model(entry, entry.prepare(image), selection)


def test_a_card_for_each_method_with_every_stage(shown: ViewModel) -> None:
    cards = re.findall(r'<figure class="card" data-method="([^"]*)">(.*?)</figure>',
                       render.render_view(shown))  # fmt: skip
    assert [name for name, _ in cards] == ["unpruned", "zero-tprune", "tome"]
    assert "<svg" not in cards[0][1]
    for (_, card), method in zip(cards[1:], shown.methods, strict=True):
        story = method.story
        layers = "".join(
            f'<g data-block="{stage.block}">{overlay(stage, lines=True)}</g>'
            for stage in story.stages
        )
        assert f">{layers}</svg>" in card
        unit = "tokens" if story.merges else "kept"
        kept = re.findall(rf'<p data-block="(\d+)"><b>(\d+)</b> of 196 {unit}', card)
        assert kept == [(str(stage.block), str(stage.kept)) for stage in story.stages]


def test_a_method_that_merges_says_so(shown: ViewModel) -> None:
    mine, rival = shown.methods
    drawn = render.render_view(shown)
    merged, dropped = f"{MARKS[Mark.MERGED]}</li>", f"{MARKS[Mark.SIMILAR]}</li>"
    assert merged in drawn
    assert dropped in drawn
    assert f'title="{len(mine.story.stages[0].pairs())} dropped as similar"' in drawn
    assert f'title="{len(rival.story.stages[0].pairs())} merged"' in drawn
    assert dropped not in render.render_view(replace(shown, methods=(rival,)))
    assert "merged" not in render.render_view(replace(shown, methods=(mine,)))


def test_times_are_shown_once_they_are_measured(shown: ViewModel) -> None:
    assert render.render_facts(shown).count("pending") == 6
    gained = render.render_facts(shown, Times([10.0, 5.0, 9.0], 1))
    measured = render.render_facts(shown, Times([10.0, 5.0, 20.0], 4))
    assert "batch of 4" in measured
    assert re.findall(r'class="speed">([^<]*)<', measured) == ["1.00×", "2.00×", "0.50×"]
    assert len(gained) < len(measured)  # which explains why it is slower
    assert "batch of" not in gained


def test_names_in_the_page_are_text(entry: CatalogEntry, image: Image.Image) -> None:
    named = CatalogEntry("demo", entry.model, ["<script>x</script>"] * 10)
    shown = build_view_model(named, named.prepare(image), Selection("demo", "zero-tprune"))
    assert "<script>" not in render.render_view(shown)
    assert "&lt;script&gt;" in render.render_view(shown)
    assert "<b>" not in render.render_status("<b>", error=True)
