"""The view model as HTML: the image by each method, predictions, cost and speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from ..backbones import backbone
from ..show.html import write_legend, write_predictions
from ..show.overlay import overlay
from ..show.palette import Mark
from ..show.story import Prediction, StageView, Story, name_marks
from ..tracing import Fate
from .timing import Times
from .view_model import MethodView, ViewModel

_NO_HEAD = '<p class="quiet">This model has no head: it predicts no classes.</p>'
_SLOWER = (
    " Slower than unpruned: so small a model takes longer to start on an image than to compute it; "
    "larger models and batches gain."
)


def render_image(shown: ViewModel) -> str:
    """The image itself, once for all cards: it need not be sent again when the slider moves."""
    return f'<style>.photo {{ background-image: url("{shown.input.url}"); }}</style>'


def render_view(shown: ViewModel) -> str:
    """The image, unpruned and by each method; a slider for the stages."""
    stories = [each.story for each in shown.methods]
    blocks = sorted({stage.block for story in stories for stage in story.stages})
    patches = f"<p>{stories[0].patches} patches</p>"
    whole = _card("unpruned", stories[0], "", patches, stories[0].before)
    cards = [_method_card(each) for each in shown.methods]
    words = name_marks([stage for story in stories for stage in story.stages])
    depth = backbone(shown.entry.model).geometry.depth
    return (
        f'<div class="view" data-blocks="{json.dumps([0, *blocks])}" '
        f'data-depth="{depth}">{_stage_slider(len(blocks))}'
        f'<div class="cards" style="--cards:{1 + len(cards)}">{whole}{"".join(cards)}</div>'
        f"{write_legend(words)}</div>"
    )


def _stage_slider(stages: int) -> str:
    off = "" if stages else " disabled"
    return (
        '<div class="bar">'
        f'<button type="button" class="play" aria-label="Play stage by stage"{off}>▶</button>'
        f'<input type="range" class="stage" min="0" max="{stages}" step="1" value="{stages}" '
        f'aria-label="Slider over the stages"{off}>'
        '<output class="where" aria-live="polite"></output>'
        f'<label class="tick"><input type="checkbox" class="partners-on"{off}>'
        "lines to partners</label></div>"
    )


def _method_card(shown: MethodView) -> str:
    story = shown.story
    rows, cols = story.grid
    captions = f'<p data-block="0">all {story.patches} patches</p>'
    captions += "".join(_caption(stage, story) for stage in story.stages)
    layers = "".join(
        f'<g data-block="{stage.block}">{overlay(stage, lines=True)}</g>' for stage in story.stages
    )
    drawn = (
        f'<svg viewBox="0 0 {cols} {rows}" preserveAspectRatio="none" aria-hidden="true">'
        f"{layers}</svg>"
    )
    return _card(shown.name, story, drawn, captions, story.after, story.before)


def _caption(stage: StageView, story: Story) -> str:
    counted = story.count_left(stage.kept).removeprefix(str(stage.kept))
    text = f"<b>{stage.kept}</b>{counted}"
    similar = (Mark.MERGED, "merged") if story.merges else (Mark.SIMILAR, "dropped as similar")
    unimportant = Mark.UNIMPORTANT, "dropped as unimportant"
    for fate, (mark, reason) in ((Fate.SIMILAR, similar), (Fate.UNIMPORTANT, unimportant)):
        if count := stage.count(fate):
            text += (
                f'<span class="chip" title="{count} {reason}"><i class="key {mark}"></i>−{count}'
                f'<span class="unseen"> {reason}</span></span>'
            )
    return f'<p data-block="{stage.block}">{text}</p>'


def _card(
    title: str,
    story: Story,
    drawn: str,
    captions: str,
    said: Sequence[Prediction],
    before: Sequence[Prediction] = (),
) -> str:
    rows, cols = story.grid
    bars = write_predictions(said, before) if said else _NO_HEAD
    return (
        f'<figure class="card" data-method="{escape(title)}"><h2>{escape(title)}</h2>'
        f'<div class="photo" role="img" aria-label="The image, {escape(title)}" '
        f'style="aspect-ratio:{cols}/{rows}">{drawn}</div>'
        f"<figcaption>{captions}</figcaption>{bars}</figure>"
    )


def render_facts(shown: ViewModel, measured: Times | None = None) -> str:
    """Cost and speed, a row for each way to run the model; None: speed is not measured yet."""
    times: list[float | None] = [None] * (1 + len(shown.methods))
    slower, images = "", "one image or a small batch"
    if measured is not None:
        times = [*measured.milliseconds]
        slower = _SLOWER if max(measured.milliseconds) > measured.milliseconds[0] else ""
        images = f"a batch of {measured.batch} images" if measured.batch > 1 else "one image"
    patches, full = shown.methods[0].story.patches, shown.entry.unpruned
    rows = _row("unpruned", full, full, patches, times[0], times[0])
    for each, took in zip(shown.methods, times[1:], strict=True):
        rows += _row(each.name, each.gmacs, full, each.left, took, times[0])
    heads = ("method", "GMACs", "of unpruned", "tokens left", "ms per image", "speed")
    titles = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'<table class="facts"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
        '<p class="quiet">GMACs: all matrix products, with patch embedding and scoring. '
        f"Milliseconds: median of runs in turn on this machine, {images}, float32, one core left "
        f"to the browser.{slower}</p>"
    )


def _row(
    name: str, cost: float, full: float, left: int, took: float | None, whole: float | None
) -> str:
    if took is None or whole is None:
        clock, speed = '<span class="pending">…</span>', '<span class="pending">…</span>'
    else:
        clock, speed = f"{took:.1f}", f"{whole / took:.2f}×"
    return (
        f'<tr data-method="{escape(name)}"><th scope="row">{escape(name)}</th>'
        f'<td class="gmacs" data-value="{cost!r}">{cost:.4f}</td><td>{100 * cost / full:.1f} %</td>'
        f'<td>{left}</td><td class="ms">{clock}</td><td class="speed">{speed}</td></tr>'
    )
