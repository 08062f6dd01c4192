"""Where everything goes, and the SVG that is made of it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from zerotprune.show.layout import lay_out_frame, lay_out_grid, lay_out_strips
from zerotprune.show.palette import PALE_COVER, Mark
from zerotprune.show.scene import Scene
from zerotprune.show.sheet import Panel, Text, font, shortened, wrapped
from zerotprune.show.story import Prediction
from zerotprune.show.svg import write_svg


def test_texts_keep_inside_the_sheet_and_off_each_other(scene: Scene) -> None:
    sheets = [lay_out_strips(scene), lay_out_grid(scene)]
    sheets += [lay_out_frame(scene, step) for step in range(scene.steps + 1)]
    for sheet in sheets:
        for shape in sheet.shapes:
            if isinstance(shape, Text):
                long = font(shape.size).getlength(shape.text)
                left = shape.x - {"start": 0, "middle": long / 2, "end": long}[shape.anchor]
                assert left >= 0
                assert left + long <= sheet.width
                assert 0 < shape.y < sheet.height
            else:
                assert shape.x + shape.width <= sheet.width + 1e-6
                assert shape.y + shape.height <= sheet.height
        places = [(shape.x, shape.y) for shape in sheet.shapes if isinstance(shape, Panel)]
        assert len(places) == len(set(places))


def test_shortened_says_so() -> None:
    assert shortened("short", 12, 200) == "short"
    cut = shortened("a very long name of a class", 12, 60)
    assert cut.endswith("…")
    assert font(12).getlength(cut) <= 60


def test_wrapped_leaves_nothing_out() -> None:
    text = "a very long name of a class, supercalifragilisticexpialidocious and so on"
    for width in (40, 60, 100, 10_000):
        lines = wrapped(text, 12, width)
        assert all(font(12).getlength(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrapped(text, 12, 10_000) == [text]


def test_a_grid_tells_whole_answers_and_what_is_left_stands_out(scene: Scene) -> None:
    long = "a long name, as some classes of ImageNet have: black-and-tan coonhound"
    other = [Prediction(f"another one, {long}", 0.4)]
    stories = [replace(story, before=[Prediction(long, 0.5)]) for story in scene.stories]
    stories[1] = replace(stories[1], after=other)
    sheet = lay_out_grid(replace(scene, stories=stories))
    panels = [shape for shape in sheet.shapes if isinstance(shape, Panel)]
    texts = [shape for shape in sheet.shapes if isinstance(shape, Text)]
    words = " ".join(shape.text for shape in texts if shape.bold)
    assert "…" not in words
    assert words.count(f"{long}: 50 %") == 6
    assert f"→ {other[0].label}: 40 %" in words
    below = [panel for panel in panels if panel.y > panels[0].y]
    assert max(text.y for text in texts if text.y < below[0].y) < below[0].y
    assert all(panel.pale for panel in panels)
    text = write_svg(sheet)
    for colour, _ in PALE_COVER.values():
        assert (f'fill="{colour}"' in text) == (colour != PALE_COVER[Mark.GONE][0])


def test_svg_holds_every_image_once_and_every_fate(scene: Scene) -> None:
    text = write_svg(lay_out_strips(scene))
    root = ElementTree.fromstring(text)
    assert text.count("data:image/jpeg") == 6
    assert not re.findall(r'(?:href|src)="(?!#|data:)', text)
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for wanted in ("a title", "about it", "after block 9", "54 of 196 kept", "no. 5"):
        assert wanted in words
    similar = "".join(re.findall(r'class="similar" d="([^"]*)"', text))
    covered = sum(int(wide) for wide in re.findall(r"h(\d+)", similar))
    assert covered == 6 * (9 + 7)
