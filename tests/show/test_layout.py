"""Where everything goes: nothing outside, nothing on top of each other, nothing left out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.thorough import thorough
from zerotprune.show.figure import PALE_COVER, Drawing
from zerotprune.show.layout import draw_frame, draw_grid, draw_strips
from zerotprune.show.scene import Scene
from zerotprune.show.story import Mark, Prediction

LAYOUTS: dict[str, Callable[[Scene], Drawing]] = {
    "strips": draw_strips,
    "grid": draw_grid,
    "first frame": lambda scene: draw_frame(scene, 0),
    "last frame": lambda scene: draw_frame(scene, scene.steps),
    "last frame of one": lambda scene: draw_frame(one(scene), scene.steps),
    "two panels": lambda scene: draw_strips(replace(scene, panels=2)),
}


def one(scene: Scene) -> Scene:
    return replace(
        scene, images=scene.images[:1], stories=scene.stories[:1], captions=scene.captions[:1]
    )


def words(drawing: Drawing) -> list[str]:
    return [text.get_text() for text in drawing._axes.texts]


#: with words as long as they get these have the least room
FULL = ("strips", "grid", "last frame")


@pytest.mark.parametrize(
    ("long", "name"),
    [pytest.param(long, name, marks=() if long == (name in FULL) else thorough)
     for long in (False, True) for name in LAYOUTS],
)  # fmt: skip
def test_texts_stay_inside_and_off_each_other(name: str, long: bool, scene: Scene) -> None:
    if long:
        label = Prediction("a long name, as ImageNet has some: black-and-tan coonhound", 0.996)
        stories = [replace(story, before=[label, *story.before[1:]]) for story in scene.stories]
        scene = replace(scene, stories=stories, title="word " * 40, captions=["name " * 20] * 6)
    drawing = LAYOUTS[name](scene)
    image = drawing.pixels(scale=1.0)
    assert image.size == (int(drawing.width), int(drawing.height))
    texts = [text.get_window_extent() for text in drawing._axes.texts]
    panels = [artist.get_window_extent() for artist in drawing._axes.images]
    for number, box in enumerate(texts):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= image.width
        assert box.y1 <= image.height
        # Boxes have room above and below the letters: lines may touch by that.
        inner = box.padded(-2)
        for other in texts[:number]:
            assert not inner.overlaps(other.padded(-2)), (box, other)
        assert not any(inner.overlaps(panel) for panel in panels)


def test_strips_tell_every_stage(scene: Scene) -> None:
    written = words(draw_strips(scene))
    for text in ("a title", "about it", "after block 9", "54 of 196 kept", "no. 5"):
        assert text in written
    assert written.count("54 of 196 kept") == len(scene.stories)
    assert sum(text.startswith("VHF counts") for text in written) == len(scene.stories)


def test_panels_can_be_limited(scene: Scene) -> None:
    few = draw_strips(replace(scene, panels=2, stories=[replace(story, heads=None)
                                                        for story in scene.stories]))  # fmt: skip
    assert len(few._axes.images) == 2 * len(scene.stories)
    assert [text for text in words(few) if "block" in text] == ["after block 9"]


def test_a_grid_tells_whole_answers_and_what_is_left_stands_out(scene: Scene) -> None:
    long = "a long name, as some classes of ImageNet have: black-and-tan coonhound"
    other = [Prediction(f"another one, {long}", 0.4)]
    stories = [replace(story, before=[Prediction(long, 0.5)]) for story in scene.stories]
    stories[1] = replace(stories[1], after=other)
    drawing = draw_grid(replace(scene, stories=stories))
    texts = drawing._axes.texts
    written = " ".join(text.get_text() for text in texts if text.get_fontweight() == "bold")
    assert "…" not in written
    assert written.count(f"{long}: 50 %") == 6
    assert f"→ {other[0].label}: 40 %" in written
    svg = drawing.svg()
    for color, _ in PALE_COVER.values():
        assert (f"fill: {color.lower()}" in svg) == (color != PALE_COVER[Mark.GONE][0])


def test_svg_has_the_words_of_the_pixels(scene: Scene) -> None:
    drawing = draw_strips(scene)
    text = drawing.svg()
    root = ElementTree.fromstring(text)
    assert text.count("data:image/jpeg") == 6
    assert not re.findall(r'href="(?!#|data:)', text)
    elements = root.iter("{http://www.w3.org/2000/svg}text")
    assert [element.text for element in elements] == words(drawing)
