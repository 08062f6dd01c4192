"""Pixels: every patch in the colour of its fate, lines that end on the partner."""

from __future__ import annotations

import numpy as np
from PIL import Image

from tests.show import hand_made
from zerotprune.show.layout import lay_out_strips
from zerotprune.show.palette import COVER, PARTNERS, Mark, rgb
from zerotprune.show.raster import SCALE, paint, rasterize
from zerotprune.show.scene import Scene
from zerotprune.tracing import Fate

LINE = rgb(PARTNERS[-1][0])


def test_paint_covers_each_patch_in_the_colour_of_its_fate() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    stage = hand_made()
    large = image.resize((180, 120), Image.Resampling.BICUBIC)
    plain = np.asarray(large, dtype=float).reshape(40, 3, 60, 3, 3).mean(axis=(1, 3))
    painted = np.asarray(paint(image, stage, (60, 40)), dtype=float)
    assert painted.shape == plain.shape == (40, 60, 3)
    for row in range(2):
        for column in range(3):
            inner = np.s_[20 * row + 1 : 20 * row + 19, 20 * column + 1 : 20 * column + 19]
            fate = Fate(int(stage.fate[row, column]))
            wanted = plain[inner]
            if fate != Fate.KEPT:
                colour, strength = COVER[Mark[fate.name]]
                wanted = (1 - strength) * wanted + strength * np.array(rgb(colour))
            np.testing.assert_allclose(painted[inner], wanted, atol=1.3)


def test_lines_end_on_the_partner() -> None:
    painted = paint(Image.new("RGB", (60, 40)), hand_made(), (240, 160), lines=True)
    assert painted.size == (240, 160)
    assert painted.getpixel((200, 120)) == LINE
    assert painted.getpixel((160, 80)) == LINE  # half way
    assert painted.getpixel((40, 120)) != LINE
    plain = paint(Image.new("RGB", (60, 40)), hand_made(), (240, 160))
    assert LINE not in {color for _, color in plain.getcolors(240 * 160) or []}


def test_a_sheet_has_its_size_and_its_panels(scene: Scene) -> None:
    sheet = lay_out_strips(scene)
    drawn = rasterize(sheet)
    assert drawn.size == (round(SCALE * sheet.width), round(SCALE * sheet.height))
    assert drawn.getpixel((1, 1)) == (255, 255, 255)
    colours = {colour for _, colour in drawn.getcolors(drawn.width * drawn.height) or []}
    assert {rgb(COVER[Mark.GONE][0]), LINE} <= colours
