"""Write a scene as one self-contained HTML file: stages on a slider, predictions, heads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from .figure import REACH, heat_map_url, heat_scale, overlay, photo_url
from .scene import Scene
from .story import MARKS, HeadsView, Mark, Prediction, StageView, Story

HIDDEN = ' style="display:none"'
TEMPLATE = Path(__file__).with_name("template.html")


def write_html(scene: Scene) -> str:
    """Return the whole file. Without scripts it still shows every stage, side by side."""
    numbers = range(len(scene.stories))
    slots = {
        "title": escape(scene.title),
        "about": escape(scene.about),
        "legend": write_legend(scene.legend()),
        "steps": str(scene.steps),
        "lines": "checked" * scene.lines,
        "symbols": "".join(_symbol(scene, number) for number in numbers),
        "articles": "\n".join(_article(scene, number) for number in numbers),
        # "</script>" in a name must not end the script.
        "data": json.dumps(_data(scene)).replace("</", "<\\/"),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], text)


def _symbol(scene: Scene, number: int) -> str:
    """Embed an image once, to be used for all of its stages; a unit is a patch."""
    rows, cols = scene.stories[number].grid
    return (
        f'<symbol id="p{number}" viewBox="0 0 {cols} {rows}" preserveAspectRatio="none">'
        f'<image width="{cols}" height="{rows}" preserveAspectRatio="none" '
        f'href="{photo_url(scene.images[number])}"/></symbol>'
    )


def _article(scene: Scene, number: int) -> str:
    story, caption = scene.stories[number], escape(scene.captions[number])
    overlays = [overlay(stage, lines=True) for stage in story.stages]
    layers = "".join(
        f'<g data-step="{step}"{"" if step == len(overlays) else HIDDEN}>{drawn}</g>'
        for step, drawn in enumerate(overlays, start=1)
    )
    label = f'class="large" role="img" aria-label="{caption}: kept and dropped patches"'
    thumbs = ""
    for step, (moment, drawn) in enumerate(zip(story.moments(), ["", *overlays], strict=True)):
        words = f"<b>{moment.title}</b><br>{moment.kept} of {story.patches}"
        thumb = _svg(story, number, 'aria-hidden="true"', drawn)
        thumbs += f'<figure data-go="{step}">{thumb}<figcaption>{words}</figcaption></figure>'
    return f"""<article>
<h2>{caption}</h2>
<div class="now"><figure>{_svg(story, number, label, layers)}</figure>
<div>{_answers(story)}<p class="note quiet" id="note{number}" aria-live="polite"></p></div></div>
<div class="stages">{thumbs}</div>
{_heads(story.heads) if story.heads else ""}
</article>"""


def _svg(story: Story, number: int, attributes: str, drawn: str) -> str:
    """Return the image with something drawn over it; a unit is a patch."""
    rows, cols = story.grid
    return (
        f'<svg viewBox="0 0 {cols} {rows}" {attributes}>'
        f'<use href="#p{number}" width="{cols}" height="{rows}"/>{drawn}</svg>'
    )


def _answers(story: Story) -> str:
    if not story.before:
        return ""
    kind, words = ("same", "the same") if story.same_answer else ("other", "another")
    return f"""<div class="answers">
<section class="before"><h3>Unpruned</h3>{write_predictions(story.before)}</section>
<section class="{kind}"><h3>Pruned: {words} answer</h3>{write_predictions(story.after)}</section>
</div>"""


def write_predictions(predictions: Sequence[Prediction], before: Sequence[Prediction] = ()) -> str:
    """List the most likely classes, and mark the first if it is not the first of `before`."""
    rows = ""
    for rank, prediction in enumerate(predictions):
        changed = rank == 0 and before and before[0].label != prediction.label
        rows += (
            f'<li class="{"changed" if changed else ""}">'
            f'<span class="label">{escape(prediction.label)}</span>'
            f'<span class="share">{100 * prediction.share:.1f} %</span>'
            f'<i style="width:{100 * prediction.share:.2f}%"></i></li>'
        )
    return f'<ol class="bars">{rows}</ol>'


def write_legend(words: Mapping[Mark, str]) -> str:
    """Say what each mark means; the style sheet has the colors, by the name of the mark."""
    keys = "".join(f'<li><i class="{mark}"></i>{text}</li>' for mark, text in words.items())
    return f'<ul class="legend">{keys}</ul>'


def _heads(views: list[HeadsView]) -> str:
    blocks = ""
    for view in views:
        rule = "no filter: the stage drops similar patches only"
        if view.vhf is not None:
            rule = "VHF counts variances from {:g} to {:g}".format(*view.vhf)
            rule += "; no head is in range, so all count" * view.none_in_range
        maps = ""
        for head, used in enumerate(view.used):
            kind, words = ("in", "") if used else ("out", ", left out")
            image = f'<img alt="head {head + 1}" src="{heat_map_url(view.importance[head])}">'
            words = f"{view.variance[head]:.2g}{words}"
            maps += f'<figure class="{kind}">{image}<figcaption>{words}</figcaption></figure>'
        blocks += f'<p>Block {view.block} <span class="quiet">({rule})</span></p>'
        blocks += f'<div class="heads">{maps}</div>'
    return f"""<details><summary>What each head votes for, and the variance of its votes</summary>
<p class="quiet">{1 / REACH:g} of the mean
<img class="ramp" alt="" src="{heat_map_url(heat_scale())}">{REACH:g} times the mean</p>
{blocks}</details>"""


def _data(scene: Scene) -> dict[str, object]:
    """Return what the script says about a patch."""
    stories = []
    for story in scene.stories:
        stages = [_stage_data(stage) for stage in story.stages]
        stories.append({"rows": story.grid[0], "cols": story.grid[1], "stages": stages})
    return {"marks": {mark[0]: words for mark, words in MARKS.items()}, "stories": stories}


def _stage_data(stage: StageView) -> dict[str, object]:
    """Return marks as one letter a patch, and importance relative to its mean."""
    partner = stage.partner.flatten().tolist()
    marks = [""] * len(partner)
    for mark in Mark:
        for patch in stage.marked(mark).flatten().nonzero().flatten().tolist():
            marks[patch] = mark[0]
    relative = (stage.importance / stage.importance.nanmean()).flatten().tolist()
    return {
        "block": stage.block,
        "marks": "".join(marks),
        "token": None if stage.token is None else stage.token.flatten().tolist(),
        "partner": {patch: other for patch, other in enumerate(partner) if other >= 0},
        "importance": [None if math.isnan(value) else float(f"{value:.2g}") for value in relative],
    }
