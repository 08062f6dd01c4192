"""The parts of the page as HTML, from what is on the screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from PIL import Image

from ..schedule import Schedule
from ..show.painting import SIMILAR, UNIMPORTANT
from ..show.story import Prediction, StageView
from ..tracing import Fate
from .offer import as_link
from .overlay import overlay
from .screen import Screen, Side

_THUMB = 96
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
    parts = [f"<b>{stage.kept}</b> of {patches} kept"]
    for fate, text in ((Fate.SIMILAR, "similar"), (Fate.UNIMPORTANT, "unimportant")):
        if count := stage.count(fate):
            parts.append(f"−{count} {text}")
    return f'<p data-block="{stage.block}">{", ".join(parts)}</p>'


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
        f'<figure class="card" data-method="{escape(title)}"><h3>{escape(title)}</h3>'
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
        f"Milliseconds: median of runs in turn on this machine, one picture, float32.{slower}</p>"
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


def stages(schedule: Schedule) -> str:
    """The schedule as a table to edit, to download and to load."""
    rows = "".join(
        _editable(stage.block, stage.keep, stage.similar, stage.rounds) for stage in schedule.stages
    )
    heads = ("after block", "keep", "similar", "rounds", "")
    titles = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'<div class="stages" data-json="{escape(schedule.to_json())}">'
        f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
        f'<template>{_editable("", 1.0, 0, None)}</template><div class="row">'
        '<button type="button" class="add">Add a stage</button>'
        '<button type="button" class="apply main">Apply</button>'
        '<button type="button" class="download">Download JSON</button>'
        '<button type="button" class="load">Load JSON</button>'
        '<input type="file" class="json" accept=".json,application/json" hidden '
        'aria-label="Schedule file"></div></div>'
    )


def _editable(block: int | str, keep: float, similar: int, rounds: int | None) -> str:
    def cell(name: str, value: object, more: str) -> str:
        named = f'name="{name}" aria-label="{name}"'
        return f'<td><input type="number" {named} value="{value}" {more}></td>'

    votes = "" if rounds is None else rounds
    return (
        "<tr>"
        + cell("block", block, 'min="1" step="1"')
        + cell("keep", keep, 'min="0" max="1" step="any"')
        + cell("similar", similar, 'min="0" step="1"')
        + cell("rounds", votes, 'min="1" step="1" placeholder="auto"')
        + '<td><button type="button" class="remove" aria-label="Remove this stage">✕</button></td>'
        + "</tr>"
    )


def chooser(pictures: Sequence[tuple[str, Image.Image]]) -> str:
    """Example pictures to press, and a place to drop one's own."""
    thumbs = "".join(
        f'<button type="button" class="thumb" data-at="{at}" aria-label="Example: {escape(text)}" '
        f'aria-pressed="{"true" if at == 0 else "false"}">'
        f'<img src="{as_link(picture.resize((_THUMB, _THUMB)))}" alt=""></button>'
        for at, (text, picture) in enumerate(pictures)
    )
    return (
        f'<div class="thumbs" role="group" aria-label="Example pictures">{thumbs}</div>'
        '<label class="drop"><input type="file" class="own" '
        'accept="image/png,image/jpeg,image/webp,image/gif,image/bmp,image/tiff">'
        "<b>Your own picture</b><span>drop it here, paste it, or choose a file</span></label>"
    )


def status(text: str, kind: str = "note") -> str:
    """One line for whoever is looking; errors are read out at once."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="status {kind}" role="{role}">{escape(text)}</p>' if text else ""


def sentence(said: object) -> str:
    """A note or an error, as a sentence on the page."""
    text = str(said).strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
