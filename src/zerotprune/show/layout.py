"""Where everything goes: a strip of stages for each image, a grid of many, a frame of a film."""

from __future__ import annotations

from collections.abc import Sequence

from . import captions
from .captions import GAP, LIST, MARGIN, ROW
from .head_maps import add_head_maps
from .palette import QUIET
from .scene import Scene
from .sheet import WORDS, Panel, Sheet, Text, shortened
from .story import StageView, Story

PANEL, TILE = 124.0, 118.0  # edges of panels in a strip and in a grid
ACROSS = 7  # panels of a strip side by side; more go on another line
GRID_WIDTH, HEADS_WIDTH, NARROWEST = 1040.0, 960.0, 560.0
TOUCH, BELOW = 2.0, 36.0  # between the panels of a tile, and room under it beside the answer

Views = tuple[StageView | None, ...]  # of one image, side by side


def lay_out_strips(scene: Scene) -> Sheet:
    """A row for each image: the image, what every stage made of it, predictions, heads."""
    across = min(ACROSS, 1 + scene.steps)
    answers = 2 * (LIST + GAP) + GAP if any(story.before for story in scene.stories) else 0.0
    wide = across * (PANEL + GAP) - GAP + answers
    heads = any(story.heads for story in scene.stories)
    sheet = Sheet(scene, max(wide, HEADS_WIDTH if heads else NARROWEST) + 2 * MARGIN)
    y = captions.add_header(sheet)
    for number, story in enumerate(scene.stories):
        top = y
        y = _add_strip(sheet, number, story, across, y, headed=number == 0)
        if story.before:
            x, above = MARGIN + across * (PANEL + GAP) + GAP, top + (14 if number == 0 else 12)
            captions.add_predictions(sheet, story, x, above, LIST)
            captions.add_predictions(sheet, story, x + LIST + GAP, above, LIST, pruned=True)
            y = max(y, above + 5 * ROW + 16)
        if story.heads:
            y = add_head_maps(sheet, story, y)
        y += GAP
    sheet.height = y
    return sheet


def lay_out_grid(scene: Scene) -> Sheet:
    """Many images: each beside what was left of it in the end, and why the rest went."""
    each = 2 * TILE + TOUCH + 2 * GAP
    across = max(2, min(len(scene.stories), int((GRID_WIDTH + 2 * GAP) / each)))
    sheet = Sheet(scene, across * each - 2 * GAP + 2 * MARGIN)
    views = [(None, story.outcome()) for story in scene.stories]
    y = captions.add_header(sheet, outcome=True)
    _add_tiles(sheet, views, TILE, across, MARGIN, y, 2 * GAP, pale=True)
    return sheet


def lay_out_frame(scene: Scene, step: int) -> Sheet:
    """One moment of a film: every image after so many stages. The answer comes with the last."""
    count, last = len(scene.stories), step == scene.steps
    edge = 322.0 if count == 1 else 252.0 if count <= 4 else 182.0
    across = min(count, 2 if count <= 4 else 4)
    side = LIST + 50 if count == 1 and scene.stories[0].before else 0.0
    sheet = Sheet(scene, max(across * (edge + GAP) - GAP + side, NARROWEST) + 2 * MARGIN)
    views = [(story.moments()[: step + 1][-1].stage,) for story in scene.stories]
    y = captions.add_progress(sheet, step, captions.add_header(sheet))
    left = MARGIN if side else (sheet.width - across * (edge + GAP) + GAP) / 2
    _add_tiles(sheet, views, edge, across, left, y, GAP, answer=last)
    if side:
        x, story = left + edge + 20, scene.stories[0]
        captions.add_predictions(sheet, story, x, y + 12, LIST + 30)
        if last:
            captions.add_predictions(sheet, story, x, y + 176, LIST + 30, pruned=True)
    return sheet


def _add_tiles(
    sheet: Sheet, views: Sequence[Views], edge: float, across: int, left: float, y: float,
    apart: float, answer: bool = True, pale: bool = False,
) -> None:  # fmt: skip
    """Some panels of each image side by side, with lines under them."""
    stories, wide = sheet.scene.stories, len(views[0]) * (edge + TOUCH) - TOUCH
    for first in range(0, len(stories), across):
        row = range(first, min(first + across, len(stories)))
        # All frames of a film are alike: room is left for the answer before it is there.
        lines = max(max(1, len(captions.answer_lines(stories[number], wide))) for number in row)
        for column, number in enumerate(row):
            story, stages = stories[number], views[number]
            x, tall = left + column * (wide + apart), _height(story, edge)
            for at, stage in enumerate(stages):
                place = x + at * (edge + TOUCH)
                sheet.add(Panel(place, y, edge, tall, number, stage, pale))
            kept = story.patches if stages[-1] is None else stages[-1].kept
            captions.add_verdict(sheet, number, x, y + tall, wide, kept, answer)
        y += max(_height(stories[number], edge) for number in row) + BELOW + lines * captions.LINE
    sheet.height = y + MARGIN / 2


def _add_strip(
    sheet: Sheet, number: int, story: Story, across: int, y: float, headed: bool
) -> float:
    tall, moments = _height(story, PANEL), story.moments()
    headed = headed or len(moments) > across
    above = 22 if headed else 0
    for at, moment in enumerate(moments):
        row, column = divmod(at, across)
        x = MARGIN + column * (PANEL + GAP)
        top = y + row * (tall + 26 + above) + above
        sheet.add(Panel(x, top, PANEL, tall, number, moment.stage))
        if headed:
            sheet.add(Text(x, top - 8, moment.title, 15, True))
        words = story.count_left(moment.kept) if at else sheet.scene.captions[number]
        words = shortened(words, WORDS, PANEL)
        sheet.add(Text(x, top + tall + 18, words, WORDS, colour=QUIET))
    return top + tall + 28


def _height(story: Story, width: float) -> float:
    return width * story.grid[0] / story.grid[1]
