"""Where everything goes, and the SVG that is made of it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from zerotprune.show.layout import lay_out_frame, lay_out_grid, lay_out_strips
from zerotprune.show.scene import Scene
from zerotprune.show.sheet import Panel, Text, font, shortened
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
