"""The page's HTML: the image under each method, predictions, cost, and our own controls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from PIL import Image, ImageOps

from ..backbones import backbone
from ..schedule import Schedule
from ..show.figure import overlay, photo_url
from ..show.html import write_legend, write_predictions
from ..show.story import Mark, Prediction, StageView, Story, name_marks
from ..tracing import Fate
from .catalog import Example
from .view_model import MethodView, Times, ViewModel

UPLOADED = "uploaded"  # in place of an example's index
_THUMBNAIL_SIZE = (96, 96)
_NO_HEAD = '<p class="quiet">This model has no head: it predicts no classes.</p>'
_SLOWER = (
    " Slower than unpruned: for so small a model, starting the operations takes longer than "
    "computing them. Larger models and batches gain."
)


def render_image(shown: ViewModel) -> str:
    """Render the image once for all cards, so that moving the slider does not send it again."""
    return f'<style>.photo {{ background-image: url("{shown.input.url}"); }}</style>'


def render_view(shown: ViewModel) -> str:
    """Render the image, unpruned and under each method, with a slider over the stages."""
    stories = [method.story for method in shown.methods]
    stages = [stage for story in stories for stage in story.stages]
    blocks = sorted({stage.block for stage in stages})
    patches = f"<p>{stories[0].patches} patches</p>"
    cards = [_card("unpruned", stories[0], "", patches, stories[0].before)]
    cards += [_method_card(method) for method in shown.methods]
    depth = backbone(shown.entry.model).geometry.depth
    return (
        f'<div class="view" data-blocks="{json.dumps([0, *blocks])}" '
        f'data-depth="{depth}">{_stage_slider(len(blocks))}'
        f'<div class="cards" style="--cards:{len(cards)}">{"".join(cards)}</div>'
        f"{write_legend(name_marks(stages))}</div>"
    )


def _stage_slider(num_stages: int) -> str:
    disabled = "" if num_stages else " disabled"
    return (
        '<div class="bar">'
        f'<button type="button" class="play" aria-label="Play stage by stage"{disabled}>▶</button>'
        f'<input type="range" class="stage" min="0" max="{num_stages}" step="1" '
        f'value="{num_stages}" aria-label="Stage"{disabled}>'
        '<output class="where" aria-live="polite"></output>'
        f'<label class="tick"><input type="checkbox" class="partners-on"{disabled}>'
        "lines to partners</label></div>"
    )


def _method_card(method: MethodView) -> str:
    story = method.story
    rows, cols = story.grid
    captions = f'<p data-block="0">all {story.patches} patches</p>'
    captions += "".join(_caption(stage, story) for stage in story.stages)
    layers = "".join(
        f'<g data-block="{stage.block}">{overlay(stage, lines=True)}</g>' for stage in story.stages
    )
    drawing = (
        f'<svg viewBox="0 0 {cols} {rows}" preserveAspectRatio="none" aria-hidden="true">'
        f"{layers}</svg>"
    )
    return _card(method.name, story, drawing, captions, story.after, story.before)


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
    drawing: str,
    captions: str,
    predictions: Sequence[Prediction],
    before: Sequence[Prediction] = (),
) -> str:
    rows, cols = story.grid
    bars = write_predictions(predictions, before) if predictions else _NO_HEAD
    return (
        f'<figure class="card" data-method="{escape(title)}"><h2>{escape(title)}</h2>'
        f'<div class="photo" role="img" aria-label="The image, {escape(title)}" '
        f'style="aspect-ratio:{cols}/{rows}">{drawing}</div>'
        f"<figcaption>{captions}</figcaption>{bars}</figure>"
    )


def render_facts(shown: ViewModel, times: Times | None = None) -> str:
    """Render cost and speed, one row per method. Without `times`, speed is still being measured."""
    milliseconds: Sequence[float | None] = [None] * (1 + len(shown.methods))
    slower, images = "", "one image or a small batch"
    if times is not None:
        milliseconds = times.milliseconds
        slower = _SLOWER if max(times.milliseconds) > times.milliseconds[0] else ""
        images = f"a batch of {times.batch} images" if times.batch > 1 else "one image"
    full = shown.entry.unpruned_gmacs
    unpruned = ("unpruned", full, shown.methods[0].story.patches)
    pruned = [(method.name, method.gmacs, method.tokens_left) for method in shown.methods]
    rows = "".join(
        f'<tr data-method="{escape(name)}"><th scope="row">{escape(name)}</th>'
        f'<td class="gmacs" data-value="{cost!r}">{cost:.4f}</td><td>{100 * cost / full:.1f} %</td>'
        f"<td>{tokens}</td>{_speed_cells(elapsed, milliseconds[0])}</tr>"
        for (name, cost, tokens), elapsed in zip([unpruned, *pruned], milliseconds, strict=True)
    )
    heads = ("method", "GMACs", "of unpruned", "tokens left", "ms per image", "speed")
    titles = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'<table class="facts"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
        '<p class="quiet">GMACs: all matrix products, with patch embedding and scoring. '
        f"Milliseconds: median of runs in turn on this machine, {images}, float32, one core left "
        f"to the browser.{slower}</p>"
    )


def _speed_cells(elapsed: float | None, unpruned: float | None) -> str:
    clock = speed = '<span class="pending">…</span>'
    if elapsed is not None and unpruned is not None:
        clock, speed = f"{elapsed:.1f}", f"{unpruned / elapsed:.2f}×"
    return f'<td class="ms">{clock}</td><td class="speed">{speed}</td>'


def render_stages(schedule: Schedule) -> str:
    """Render the schedule as a table to edit, download and load."""
    rows = "".join(
        _stage_row(stage.block, stage.keep, stage.similar, stage.rounds)
        for stage in schedule.stages
    )
    heads = ("after block", "keep", "similar", "rounds", "")
    titles = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'<div class="stages" data-json="{escape(schedule.to_json())}">'
        f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
        f'<template>{_stage_row("", 1.0, 0, None)}</template><div class="row">'
        '<button type="button" class="add">Add a stage</button>'
        '<button type="button" class="apply main">Apply</button>'
        '<button type="button" class="download">Download JSON</button>'
        '<button type="button" class="load">Load JSON</button>'
        '<input type="file" class="json" accept=".json,application/json" hidden '
        'aria-label="Schedule file"></div></div>'
    )


def _stage_row(block: int | str, keep: float, similar: int, rounds: int | None) -> str:
    def cell(name: str, value: object, attributes: str) -> str:
        label = f'name="{name}" aria-label="{name}"'
        return f'<td><input type="number" {label} value="{value}" {attributes}></td>'

    return (
        "<tr>"
        + cell("block", block, 'min="1" step="1"')
        + cell("keep", keep, 'min="0" max="1" step="any"')
        + cell("similar", similar, 'min="0" step="1"')
        + cell("rounds", rounds or "", 'min="1" step="1" placeholder="auto"')
        + '<td><button type="button" class="remove" aria-label="Remove this stage">✕</button></td>'
        + "</tr>"
    )


def render_chooser(
    examples: Mapping[int, Example], pressed: int | None, uploaded: str | None = None
) -> str:
    """Render images to choose from, and a place to drop another.

    Args:
        examples: By their index.
        pressed: Which one is shown; None for the uploaded image.
        uploaded: URL of the uploaded image's thumbnail, if there is one.
    """
    thumbnails = "".join(
        _thumbnail(str(index), f"Example: {text}", thumbnail_url(image), index == pressed)
        for index, (text, image) in examples.items()
    )
    if uploaded is not None:
        thumbnails += _thumbnail(UPLOADED, "Your image", uploaded, pressed is None)
    return (
        f'<div class="thumbs" role="group" aria-label="Images to choose">{thumbnails}</div>'
        '<label class="drop"><input type="file" class="file" '
        'accept="image/png,image/jpeg,image/webp,image/gif,image/bmp,image/tiff">'
        "<b>Your own image</b><span>drop it here, paste it, or choose a file</span></label>"
    )


def _thumbnail(key: str, label: str, url: str, pressed: bool) -> str:
    return (
        f'<button type="button" class="thumb" data-at="{key}" aria-label="{escape(label)}" '
        f'title="{escape(label)}" aria-pressed="{"true" if pressed else "false"}">'
        f'<img src="{url}" alt=""></button>'
    )


def thumbnail_url(image: Image.Image) -> str:
    """Return the middle of the image, small, as a data URL."""
    return photo_url(ImageOps.fit(image, _THUMBNAIL_SIZE))


def render_status(*messages: object, error: bool = False) -> str:
    """Render notes or an error, as sentences. Screen readers announce an error at once."""
    kind, role = ("error", "alert") if error else ("note", "status")
    text = escape(" ".join(map(_as_sentence, messages)))
    return f'<p class="status {kind}" role="{role}">{text}</p>' if text else ""


def _as_sentence(message: object) -> str:
    text = str(message).strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
