"""A scene as one HTML file that needs nothing else: stages on a slider, predictions, heads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from .heads import HeadsView
from .overlay import overlay
from .palette import Mark
from .pixels import REACH, heat_map_url, heat_scale
from .scene import Scene
from .story import MARKS, Moment, Prediction, StageView, Story
from .svg import symbol

HIDDEN = ' style="display:none"'
TEMPLATE = Path(__file__).with_name("template.html")


def write_html(scene: Scene) -> str:
    """The whole file. Without scripts it still shows every stage, side by side."""
    numbers = range(len(scene.stories))
    filled = {
        "title": escape(scene.title),
        "about": escape(scene.about),
        "legend": write_legend(scene.legend()),
        "steps": str(scene.steps),
        "lines": "checked" * scene.lines,
        "symbols": "".join(symbol(scene, number) for number in numbers),
        "articles": "\n".join(_article(scene, number) for number in numbers),
        # "</script>" in a name must not end the script.
        "data": json.dumps(_data(scene)).replace("</", "<\\/"),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: filled[slot[1]], text)


def _article(scene: Scene, number: int) -> str:
    story, caption = scene.stories[number], scene.captions[number]
    thumbs = "".join(_thumb(story, number, at, moment) for at, moment in enumerate(story.moments()))
    answers = ""
    if story.before:
        kind, words = ("same", "the same") if story.same_answer else ("other", "another")
        answers = f"""<div class="answers">
<section class="before"><h3>Unpruned</h3>{write_predictions(story.before)}</section>
<section class="{kind}"><h3>Pruned: {words} answer</h3>{write_predictions(story.after)}</section>
</div>"""
    return f"""<article>
<h2>{escape(caption)}</h2>
<div class="now"><figure>{_large(story, number, caption)}</figure>
<div>{answers}<p class="told quiet" id="told{number}" aria-live="polite"></p></div></div>
<div class="stages">{thumbs}</div>
{_heads(story.heads) if story.heads else ""}
</article>"""


def _draw_svg(story: Story, number: int, attributes: str, over: str) -> str:
    """The image with something over it, in units of patches."""
    rows, cols = story.grid
    return (
        f'<svg viewBox="0 0 {cols} {rows}" {attributes}>'
        f'<use href="#p{number}" width="{cols}" height="{rows}"/>{over}</svg>'
    )


def _large(story: Story, number: int, caption: str) -> str:
    """The image with every stage upon it; the script shows one of them."""
    last = len(story.stages)
    layers = "".join(
        f'<g data-step="{at}"{"" if at == last else HIDDEN}>{overlay(stage, lines=True)}</g>'
        for at, stage in enumerate(story.stages, start=1)
    )
    label = f'class="large" role="img" aria-label="{escape(caption)}: kept and dropped patches"'
    return _draw_svg(story, number, label, layers)


def _thumb(story: Story, number: int, at: int, moment: Moment) -> str:
    over = "" if moment.stage is None else overlay(moment.stage, lines=False)
    drawn = _draw_svg(story, number, 'aria-hidden="true"', over)
    words = f"<b>{moment.title}</b><br>{moment.kept} of {story.patches}"
    return f'<figure data-go="{at}">{drawn}<figcaption>{words}</figcaption></figure>'


def write_predictions(said: Sequence[Prediction], before: Sequence[Prediction] = ()) -> str:
    """The likeliest classes. Where the likeliest is not what it was before, it is marked."""
    rows = ""
    for number, each in enumerate(said):
        mark = "changed" if number == 0 and before and before[0].label != each.label else ""
        rows += (
            f'<li class="{mark}"><span class="label">{escape(each.label)}</span>'
            f'<span class="share">{100 * each.share:.1f} %</span>'
            f'<i style="width:{100 * each.share:.2f}%"></i></li>'
        )
    return f'<ol class="bars">{rows}</ol>'


def write_legend(words: Mapping[Mark, str]) -> str:
    """What each mark means; the colours are the style sheet's, by the mark's name."""
    keys = "".join(f'<li><i class="{mark}"></i>{text}</li>' for mark, text in words.items())
    return f'<ul class="legend">{keys}</ul>'


def _heads(views: list[HeadsView]) -> str:
    blocks = ""
    for view in views:
        rule = "no filter: the stage drops similar patches only"
        if view.vhf is not None:
            rule = "VHF counts variances from {:g} to {:g}".format(*view.vhf)
            rule += "; no head has one, so all count" * view.none_in_range
        maps = ""
        for head, used in enumerate(view.used):
            kind, words = ("in", "") if used else ("out", ", left out")
            drawn = f'<img alt="head {head + 1}" src="{heat_map_url(view.importance[head])}">'
            words = f"{view.variance[head]:.2g}{words}"
            maps += f'<figure class="{kind}">{drawn}<figcaption>{words}</figcaption></figure>'
        blocks += f'<p>Block {view.block} <span class="quiet">({rule})</span></p>'
        blocks += f'<div class="heads">{maps}</div>'
    return f"""<details><summary>What each head votes for, and the variance of its votes</summary>
<p class="quiet">{1 / REACH:g} of the mean
<img class="ramp" alt="" src="{heat_map_url(heat_scale())}">{REACH:g} times the mean</p>
{blocks}</details>"""


def _data(scene: Scene) -> dict[str, object]:
    """What the script needs to tell of a patch."""
    stories = []
    for story in scene.stories:
        stages = [_stage_data(stage) for stage in story.stages]
        stories.append({"rows": story.grid[0], "cols": story.grid[1], "stages": stages})
    return {"marks": {mark[0]: words for mark, words in MARKS.items()}, "stories": stories}


def _stage_data(stage: StageView) -> dict[str, object]:
    """Marks as one letter for each patch; importance as shares of the mean."""
    partner = stage.partner.flatten().tolist()
    marks = [""] * len(partner)
    for mark in Mark:
        for at in stage.marked(mark).flatten().nonzero().flatten().tolist():
            marks[at] = mark[0]
    relative = (stage.importance / stage.importance.nanmean()).flatten().tolist()
    return {
        "block": stage.block,
        "marks": "".join(marks),
        "token": None if stage.token is None else stage.token.flatten().tolist(),
        "partner": {at: other for at, other in enumerate(partner) if other >= 0},
        "importance": [None if math.isnan(each) else float(f"{each:.2g}") for each in relative],
    }
