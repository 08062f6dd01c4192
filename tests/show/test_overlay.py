"""The SVG that is laid over an image, on the page and in files."""

from __future__ import annotations

import re

import numpy as np

from tests.show import hand_made
from zerotprune.show.overlay import overlay
from zerotprune.show.palette import PARTNERS
from zerotprune.show.story import Story
from zerotprune.tracing import Fate


def covered(drawn: str, shape: tuple[int, int]) -> np.ndarray:
    """The fates of all patches, read back from the paths."""
    fates = np.full(shape, Fate.KEPT.value)
    for fate in (Fate.SIMILAR, Fate.UNIMPORTANT, Fate.GONE):
        for path in re.findall(rf'class="{fate.name.lower()}"[^>]* d="([^"]*)"', drawn):
            rectangles = re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path)
            assert "".join(f"M{x} {y}h{w}v1h-{w}z" for x, y, w in rectangles) == path
            for x, y, width in rectangles:
                place = fates[int(y), int(x) : int(x) + int(width)]
                assert (place == Fate.KEPT).all()
                place[:] = fate
    return fates


def test_every_patch_is_covered_by_its_fate(stories: list[Story]) -> None:
    for story in stories:
        for stage in (*story.stages, story.outcome()):
            fates = covered(overlay(stage, lines=False), story.grid)
            np.testing.assert_array_equal(fates, stage.fate.numpy())


def test_lines_go_from_a_patch_to_its_partner() -> None:
    stage = hand_made()
    assert "partners" not in overlay(stage, lines=False)
    drawn = overlay(stage, lines=True)
    (group,) = re.findall(r'<g class="partners"[^>]*>(.*)</g>', drawn)
    paths = re.findall(r'd="([^"]*)" stroke="([^"]*)" stroke-width="([^"]*)"', group)
    assert paths == [
        (path, colour, str(width))
        for colour, line, dot in PARTNERS
        for path, width in (("M1.5 0.5L2.5 1.5", line), ("M2.5 1.5h0", dot))
    ]


def test_no_pairs_no_lines(stories: list[Story]) -> None:
    last = stories[0].stages[-1]
    assert last.pairs() == []
    assert "partners" not in overlay(last, lines=True)
