"""What is on the screen as HTML: the picture by each method, predictions, cost and speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from ..show.painting import SIMILAR, UNIMPORTANT
from ..show.story import Prediction, StageView
from ..tracing import Fate
from .overlay import overlay
from .view_model import Screen, Side

_DROPPED = {Fate.SIMILAR: ("similar", SIMILAR), Fate.UNIMPORTANT: ("unimportant", UNIMPORTANT)}
_SLOWER = (
    " Slower than unpruned: one small picture takes longer to start on than to compute; "
    "larger models and batches gain."
)
_LEGEND = (
    ("kept", "", "kept"),
    ("similar", SIMILAR, "dropped as similar, or merged"),
    ("unimportant", UNIMPORTANT, "dropped as unimportant"),
    ("gone", "", "dropped before"),
)


def picture(screen: Screen) -> str:
    """The picture itself, once for all cards: it need not be sent again when the dial is turned."""
    return f'<style>.picture {{ background-image: url("{screen.sight.link}"); }}</style>'


def view(screen: Screen) -> str:
    """The picture, unpruned and by each method; a slider for the stages."""
    blocks = sorted({stage.block for side in screen.sides for stage in side.story.stages})
    whole = _card("unpruned", screen, "", _whole(screen), screen.sides[0].story.before)
    cards = [_side_card(screen, side) for side in screen.sides]
    return (
        f'<div class="view" data-blocks="{json.dumps([0, *blocks])}" '
        f'data-depth="{screen.offer.depth}">{_slider(len(blocks))}'
        f'<div class="cards" style="--cards:{1 + len(cards)}">{whole}{"".join(cards)}</div>'
        f"{_legend()}</div>"
    )


def _slider(stages: int) -> str:
    off = "" if stages else " disabled"
    return (
        '<div class="bar">'
        f'<button type="button" class="play" aria-label="Play stage by stage"{off}>▶</button>'
        f'<input type="range" class="stage" min="0" max="{stages}" step="1" value="{stages}" '
        f'aria-label="Stage"{off}><output class="where" aria-live="polite"></output>'
        f'<label class="tick"><input type="checkbox" class="links-on"{off}>'
        "lines to partners</label></div>"
    )


def _legend() -> str:
    parts = "".join(
        f'<li><i class="{name}" style="background:{colour}"></i>{text}</li>'
        for name, colour, text in _LEGEND
    )
    return f'<ul class="legend">{parts}</ul>'


def _whole(screen: Screen) -> str:
    return f"<p>{screen.sides[0].story.patches} patches</p>"


def _side_card(screen: Screen, side: Side) -> str:
    patches = side.story.patches
    captions = f'<p data-block="0">all {patches} patches</p>'
    captions += "".join(_caption(stage, patches) for stage in side.story.stages)
    drawn = overlay(side.story)
    return _card(side.contender.name, screen, drawn, captions, side.story.after, side.story.before)


def _caption(stage: StageView, patches: int) -> str:
    text = f"<b>{stage.kept}</b> of {patches} kept"
    for fate, (name, colour) in _DROPPED.items():
        if count := stage.count(fate):
            swatch = f'<i style="background:{colour}"></i>'
            text += (
                f'<span class="chip" title="{count} dropped as {name}">{swatch}−{count}'
                f'<span class="unseen"> {name}</span></span>'
            )
    return f'<p data-block="{stage.block}">{text}</p>'


def _card(
    title: str,
    screen: Screen,
    drawn: str,
    captions: str,
    said: Sequence[Prediction],
    before: Sequence[Prediction] = (),
) -> str:
    rows, cols = screen.sides[0].story.grid
    return (
        f'<figure class="card" data-method="{escape(title)}"><h2>{escape(title)}</h2>'
        f'<div class="picture" role="img" aria-label="The picture, {escape(title)}" '
        f'style="aspect-ratio:{cols}/{rows}">{drawn}</div>'
        f"<figcaption>{captions}</figcaption>{_bars(said, before)}</figure>"
    )


def _bars(said: Sequence[Prediction], before: Sequence[Prediction]) -> str:
    """The likeliest classes. Where the likeliest is not what it was unpruned, it is marked."""
    if not said:
        return '<p class="quiet">This model has no head: it predicts no classes.</p>'
    rows = ""
    for number, each in enumerate(said):
        changed = bool(number == 0 and before and before[0].label != each.label)
        mark = ' class="changed"' if changed else ""
        rows += (
            f'<li{mark}><span class="label">{escape(each.label)}</span>'
            f'<span class="share">{100 * each.share:.1f} %</span>'
            f'<i style="width:{100 * each.share:.2f}%"></i></li>'
        )
    return f'<ol class="bars">{rows}</ol>'


def facts(screen: Screen, milliseconds: Sequence[float] | None = None) -> str:
    """Cost and speed, a row for each way to run the model; None: speed is not measured yet."""
    times = [None] * (1 + len(screen.sides)) if milliseconds is None else list(milliseconds)
    patches, full = screen.sides[0].story.patches, screen.offer.unpruned
    rows = _row("unpruned", full, full, patches, times[0], times[0])
    for side, took in zip(screen.sides, times[1:], strict=True):
        rows += _row(side.contender.name, side.gmacs, full, side.left, took, times[0])
    slower = _SLOWER if milliseconds is not None and max(milliseconds) > milliseconds[0] else ""
    heads = ("method", "GMACs", "of unpruned", "patches left", "ms a picture", "speed")
    titles = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'<table class="facts"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
        '<p class="quiet">GMACs: all matrix products, with patch embedding and scoring. '
        "Milliseconds: median of runs in turn on this machine, one picture, float32, one core left "
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
