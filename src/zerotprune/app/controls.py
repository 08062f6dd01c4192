"""Controls of our own as HTML: images to choose, stages to edit, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from PIL import Image, ImageOps

from ..schedule import Schedule
from ..show.pixels import photo_url

OWN = "own"  # where an example has its number
_THUMB = 96


def render_stages(schedule: Schedule) -> str:
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


def render_chooser(
    examples: Mapping[int, tuple[str, Image.Image]], pressed: int | None, own: str | None = None
) -> str:
    """Example images to press, one's own if there is one, and a place to drop another.

    `pressed` is the number of an example, or None for one's own, whose thumbnail's URL is `own`.
    """
    thumbs = "".join(
        _thumb(str(at), f"Example: {text}", thumbnail_url(image), at == pressed)
        for at, (text, image) in examples.items()
    )
    if own is not None:
        thumbs += _thumb(OWN, "Your own image", own, pressed is None)
    return (
        f'<div class="thumbs" role="group" aria-label="Images to choose">{thumbs}</div>'
        '<label class="drop"><input type="file" class="own" '
        'accept="image/png,image/jpeg,image/webp,image/gif,image/bmp,image/tiff">'
        "<b>Your own image</b><span>drop it here, paste it, or choose a file</span></label>"
    )


def _thumb(at: str, label: str, url: str, pressed: bool) -> str:
    return (
        f'<button type="button" class="thumb" data-at="{at}" aria-label="{escape(label)}" '
        f'title="{escape(label)}" aria-pressed="{"true" if pressed else "false"}">'
        f'<img src="{url}" alt=""></button>'
    )


def thumbnail_url(image: Image.Image) -> str:
    """The middle of the image, small, as a data URL."""
    return photo_url(ImageOps.fit(image, (_THUMB, _THUMB)))


def render_status(text: str, kind: str = "note") -> str:
    """One line for whoever is looking; errors are read out at once."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="status {kind}" role="{role}">{escape(text)}</p>' if text else ""


def as_sentence(said: object) -> str:
    """A note or an error, as a sentence on the page."""
    text = str(said).strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
