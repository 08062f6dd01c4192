"""Where everything goes: a strip of stages for each picture, a grid of many, a frame of a film."""

from __future__ import annotations

import math

from .captions import GAP, LIST, MARGIN, ROW, head, likeliest, progress, pruned, verdict
from .head_maps import head_maps
from .sheet import INK, QUIET, WORDS, Panel, Scene, Sheet, Text, shortened
from .story import Story

PANEL, TILE = 136.0, 118.0  # edges of panels in a strip and in a grid
ACROSS = 7  # panels of a strip side by side; more go on another line
GRID_WIDTH, HEADS_WIDTH, NARROWEST = 1040.0, 960.0, 560.0
BELOW = 54.0  # room for the verdict under a tile


def strips(scene: Scene) -> Sheet:
    """A row for each picture: the picture, what every stage made of it, predictions, heads."""
    across = min(ACROSS, 1 + scene.steps)
    answers = 2 * (LIST + GAP) + GAP if any(story.before for story in scene.stories) else 0.0
    wide = across * (PANEL + GAP) - GAP + answers
    heads = any(story.heads for story in scene.stories)
    sheet = Sheet(scene, max(wide, HEADS_WIDTH if heads else NARROWEST) + 2 * MARGIN)
    y = head(sheet)
    for number, story in enumerate(scene.stories):
        top = y
        y = _strip(sheet, number, story, across, y, headed=number == 0)
        if story.before:
            x, above = MARGIN + across * (PANEL + GAP) + GAP, top + (14 if number == 0 else 12)
            likeliest(sheet, "unpruned", story.before, x, above, LIST, INK)
            pruned(sheet, story, x + LIST + GAP, above, LIST)
            y = max(y, above + 5 * ROW + 16)
        if story.heads:
            y = head_maps(sheet, story, y)
        y += GAP
    sheet.height = y
    return sheet


def grid(scene: Scene) -> Sheet:
    """Many pictures: each beside what was left of it in the end, and why the rest went."""
    each, apart = 2 * TILE + 2, 2 * GAP
    across = max(2, min(len(scene.stories), int((GRID_WIDTH + apart) / (each + apart))))
    sheet = Sheet(scene, across * (each + apart) - apart + 2 * MARGIN)
    y = head(sheet, outcome=True)
    deep = max(_tall(story, TILE) for story in scene.stories) + BELOW
    for number, story in enumerate(scene.stories):
        row, column = divmod(number, across)
        x, top, tall = MARGIN + column * (each + apart), y + row * deep, _tall(story, TILE)
        end = story.outcome()
        sheet.add(
            Panel(x, top, TILE, tall, number), Panel(x + TILE + 2, top, TILE, tall, number, end)
        )
        verdict(sheet, number, story, (x, top + tall), each, end.kept)
    sheet.height = y + math.ceil(len(scene.stories) / across) * deep + MARGIN / 2
    return sheet


def frame(scene: Scene, step: int) -> Sheet:
    """One moment of a film: every picture after so many stages. The answer comes with the last."""
    count, last = len(scene.stories), step == scene.steps
    edge = 322.0 if count == 1 else 252.0 if count <= 4 else 182.0
    across = min(count, 2 if count <= 4 else 4)
    side = LIST + 50 if count == 1 and scene.stories[0].before else 0.0
    sheet = Sheet(scene, max(across * (edge + GAP) - GAP + side, NARROWEST) + 2 * MARGIN)
    y = progress(sheet, step, head(sheet))
    deep = max(_tall(story, edge) for story in scene.stories) + BELOW
    left = MARGIN if side else (sheet.width - across * (edge + GAP) + GAP) / 2
    for number, story in enumerate(scene.stories):
        row, column = divmod(number, across)
        x, top, tall = left + column * (edge + GAP), y + row * deep, _tall(story, edge)
        stage = story.stages[min(step, len(story.stages)) - 1] if step and story.stages else None
        sheet.add(Panel(x, top, edge, tall, number, stage))
        kept = story.patches if stage is None else stage.kept
        verdict(sheet, number, story, (x, top + tall), edge, kept, answer=last)
        if side:
            likeliest(sheet, "unpruned", story.before, x + edge + 20, top + 12, LIST + 30, INK)
            if last:
                pruned(sheet, story, x + edge + 20, top + 176, LIST + 30)
    sheet.height = y + math.ceil(count / across) * deep + MARGIN / 2
    return sheet


def _strip(sheet: Sheet, number: int, story: Story, across: int, y: float, headed: bool) -> float:
    tall, panels = _tall(story, PANEL), 1 + len(story.stages)
    headed = headed or panels > across
    above = 22 if headed else 0
    for at in range(panels):
        row, column = divmod(at, across)
        x = MARGIN + column * (PANEL + GAP)
        top = y + row * (tall + 26 + above) + above
        stage = story.stages[at - 1] if at else None
        sheet.add(Panel(x, top, PANEL, tall, number, stage))
        title = "picture" if stage is None else f"after block {stage.block}"
        words = sheet.scene.captions[number]
        if stage is not None:
            words = f"{stage.kept} of {story.patches} kept"
        if headed:
            sheet.add(Text(x, top - 8, title, 15, True))
        words = shortened(words, WORDS, PANEL)
        sheet.add(Text(x, top + tall + 18, words, WORDS, colour=QUIET))
    return top + tall + 28


def _tall(story: Story, wide: float) -> float:
    return wide * story.grid[0] / story.grid[1]
