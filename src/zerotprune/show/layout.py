"""Draw a scene into a file: a strip of stages for each image, a grid of many images, or a film."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageColor

from ..safety.files import check_writable, replacing
from .figure import (
    ACCENT,
    BAR,
    COVER,
    INK,
    OTHER,
    PALE,
    PALE_COVER,
    QUIET,
    REACH,
    SAME,
    Drawing,
    heat_scale,
    text_width,
    wrap,
)
from .html import write_html
from .scene import Scene, percent
from .story import HeadsView, Mark, StageView, Story

MARGIN, GAP = 20.0, 10.0
LINE = 18.0  # height of a line of text
TITLE, HEADING = 20.0, 13.0  # sizes of text
PANEL, TILE = 140.0, 140.0  # edges of panels in a strip and in a grid: whole units a patch
ACROSS = 7  # panels of a strip in one row
LIST, ROW = 178.0, 24.0  # width of a list of predictions, height of a row
GRID_WIDTH, HEADS_WIDTH, NARROWEST = 1190.0, 1010.0, 560.0
TOUCH, BELOW = 2.0, 36.0  # between the panels of a tile, and below it without the answer
MAP, APART = 70.0, 6.0  # edge of a head's map, and the gap to the next
MERGED_KEY = ("#A9876B", "#7386A3")  # two tokens side by side, in the legend

STILL, MOVING, PAGE = (".png", ".svg"), (".gif", ".webp"), (".html",)
SUFFIXES = STILL + MOVING + PAGE
#: 64 levels of a channel look like 256 and make a PNG a third smaller
COARSER = [round(round(level / 255 * 63) / 63 * 255) for level in range(256)]
FIRST, NEXT, LAST = 1400, 1100, 3500  # milliseconds that a film shows its frames

Views = tuple[StageView | None, ...]  # of one image, side by side


def check_drawable(
    path: Path, *, heads: bool = False, tiles: bool = False, panels: int | None = None
) -> None:
    """Raise ValueError, before any work is done, if no such file can be drawn.

    Args:
        path: Where the drawing goes; its suffix says the format.
        heads: Draw the heads too.
        tiles: Draw a grid of many images.
        panels: The most panels of a strip; None for no limit.
    """
    ending = path.suffix.lower()
    if ending not in SUFFIXES:
        suffixes = ", ".join(SUFFIXES)
        raise ValueError(f"cannot draw {path.name}: the ending must be one of {suffixes}")
    if heads and (ending in MOVING or tiles):
        raise ValueError(f"heads can be drawn into {', '.join(STILL + PAGE)} without a grid")
    if tiles and ending not in STILL:
        raise ValueError(f"a grid can be drawn into {' or '.join(STILL)}, got {path.name}")
    if panels is not None and (tiles or ending not in STILL):
        raise ValueError(f"panels can be limited in {' and '.join(STILL)} without a grid")
    check_writable(path)


def draw(scene: Scene, path: Path, *, tiles: bool = False) -> None:
    """Write the file, whole or not at all.

    Args:
        scene: What to draw.
        path: Where the drawing goes; its suffix says the format.
        tiles: Draw a grid of what was left in the end, not strips of stages.
    """
    ending = path.suffix.lower()
    with replacing(path) as temporary:
        if ending in MOVING:
            _save_film(scene, temporary, ending)
        elif ending in PAGE:
            temporary.write_text(write_html(scene), encoding="utf-8")
        else:
            drawing = draw_grid(scene) if tiles else draw_strips(scene)
            if ending == ".svg":
                temporary.write_text(drawing.svg(), encoding="utf-8")
            else:
                drawing.pixels().point(COARSER * 3).save(temporary, "PNG", optimize=True)


def _save_film(scene: Scene, path: Path, ending: str) -> None:
    """Write one frame for each stage, in an endless loop."""
    frames = [draw_frame(scene, step).pixels() for step in range(scene.steps + 1)]
    durations = [FIRST, *[NEXT] * (len(frames) - 2), LAST][: len(frames)]
    options: dict[str, int | bool] = {"quality": 88, "method": 4}
    if ending == ".gif":
        options = {"optimize": True, "disposal": 1}
        frames = [_quantize(frame) for frame in frames]
    frames[0].save(path, ending[1:], append_images=frames[1:], duration=durations, loop=0,
                   save_all=True, **options)  # fmt: skip


def _quantize(frame: Image.Image) -> Image.Image:
    """Reduce a frame to 256 colors, with those of the marks among them."""
    fixed = [color for color, _ in COVER.values()] + [ACCENT, SAME, OTHER]
    count = 256 - len(fixed)
    colors = frame.quantize(count, Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(
        colors[: 3 * count] + [level for color in fixed for level in ImageColor.getrgb(color)]
    )
    # Dithering would make flat areas crawl from frame to frame.
    return frame.quantize(palette=palette, dither=Image.Dither.NONE)


def draw_strips(scene: Scene) -> Drawing:
    """Draw a row for each image: the image after every stage, predictions, heads."""
    moments = [story.moments(scene.panels) for story in scene.stories]
    across = min(ACROSS, max(map(len, moments), default=1))
    answers = 2 * (LIST + GAP) + GAP if any(story.before for story in scene.stories) else 0.0
    heads = any(story.heads for story in scene.stories)
    width = max(across * (PANEL + GAP) - GAP + answers, HEADS_WIDTH if heads else NARROWEST)
    drawing = Drawing(width + 2 * MARGIN, title=scene.title)
    y = add_header(drawing, scene)
    for number, story in enumerate(scene.stories):
        top, y = y, _add_strip(drawing, scene, number, across, y)
        if story.before:
            x, above = MARGIN + across * (PANEL + GAP) + GAP, top + (14 if number == 0 else 12)
            _add_predictions(drawing, story, x, above, LIST)
            _add_predictions(drawing, story, x + LIST + GAP, above, LIST, pruned=True)
            y = max(y, above + 5 * ROW + 16)
        if story.heads:
            y = _add_heads(drawing, story, y)
        y += GAP
    drawing.height = y
    return drawing


def draw_grid(scene: Scene) -> Drawing:
    """Draw each image beside what was left of it in the end."""
    step = 2 * TILE + TOUCH + 2 * GAP
    across = max(2, min(len(scene.stories), int((GRID_WIDTH + 2 * GAP) / step)))
    drawing = Drawing(across * step - 2 * GAP + 2 * MARGIN, title=scene.title)
    views: list[Views] = [(None, story.outcome()) for story in scene.stories]
    y = add_header(drawing, scene, outcome=True)
    _add_tiles(drawing, scene, views, TILE, across, (MARGIN, y), 2 * GAP, pale=True)
    return drawing


def draw_frame(scene: Scene, step: int) -> Drawing:
    """Draw every image after `step` stages; the answer comes with the last."""
    count, last = len(scene.stories), step == scene.steps
    edge = 322.0 if count == 1 else 252.0 if count <= 4 else 182.0
    across = min(count, 2 if count <= 4 else 4)
    side = LIST + 50 if count == 1 and scene.stories[0].before else 0.0
    width = max(across * (edge + GAP) - GAP + side, NARROWEST)
    drawing = Drawing(width + 2 * MARGIN, title=scene.title)
    views: list[Views] = [(story.moments()[: step + 1][-1].stage,) for story in scene.stories]
    y = _add_progress(drawing, scene, step, add_header(drawing, scene))
    left = MARGIN if side else (drawing.width - across * (edge + GAP) + GAP) / 2
    _add_tiles(drawing, scene, views, edge, across, (left, y), GAP, answer=last)
    if side:
        x, story = left + edge + 20, scene.stories[0]
        _add_predictions(drawing, story, x, y + 12, LIST + 30)
        if last:
            _add_predictions(drawing, story, x, y + 176, LIST + 30, pruned=True)
    return drawing


def add_header(drawing: Drawing, scene: Scene, outcome: bool = False) -> float:
    """Write title, cost and legend; return where the rest begins."""
    width = drawing.width - 2 * MARGIN
    drawing.text(MARGIN, 34, scene.title, size=TITLE, bold=True, width=width)
    drawing.text(MARGIN, 57, scene.about, color=QUIET, width=width)
    if not scene.steps:
        return 72.0
    x, y = MARGIN, 84.0
    for mark, words in scene.legend(outcome).items():
        right = x + 19 + text_width(words)
        if x > MARGIN and right > drawing.width - MARGIN:
            x, y, right = MARGIN, y + 22, MARGIN + right - x
        _add_key(drawing, mark, x, y - 11, outcome)
        drawing.text(x + 19, y, words, width=width - 19)
        x = right + 21
    return y + 18


def _add_key(drawing: Drawing, mark: Mark, x: float, y: float, pale: bool) -> None:
    """Draw a small patch with its mark; for merged ones, two tokens."""
    if mark == Mark.MERGED:
        drawing.box((x, y, 13, 13), MERGED_KEY[0], outline=INK)
        drawing.box((x + 7, y + 1, 5, 11), MERGED_KEY[1])
        drawing.box((x + 6, y + 1, 1.5, 11), "#FFFFFF")
        return
    color, _ = (PALE_COVER if pale else COVER)[mark]
    drawing.box((x, y, 13, 13), color, outline="#9AA0A6" if pale or mark == Mark.GONE else None)


def _add_strip(drawing: Drawing, scene: Scene, number: int, across: int, y: float) -> float:
    """Draw the panels of an image, with titles for the first and wherever they fill two rows."""
    story = scene.stories[number]
    height, moments = _height(story, PANEL), story.moments(scene.panels)
    titled = number == 0 or len(moments) > across
    above, top = 22 if titled else 0, y
    for index, moment in enumerate(moments):
        row, column = divmod(index, across)
        x = MARGIN + column * (PANEL + GAP)
        top = y + row * (height + 34 + above) + above
        drawing.panel((x, top, PANEL, height), scene.images[number], moment.stage,
                      lines=scene.lines)  # fmt: skip
        if titled:
            drawing.text(x, top - 8, moment.title, size=HEADING, bold=True)
        words = story.count_left(moment.kept) if index else scene.captions[number]
        drawing.text(x, top + height + 18, words, color=QUIET, width=PANEL + GAP / 2)
    return top + height + 28


def _add_predictions(
    drawing: Drawing, story: Story, x: float, y: float, width: float, pruned: bool = False
) -> None:
    """Write the most likely classes, each on a bar as long as its probability."""
    title, predictions, color = "unpruned", story.before, INK
    if pruned:
        answer, color = ("same", SAME) if story.same_answer else ("other", OTHER)
        title, predictions = f"pruned: {answer} answer", story.after
    drawing.text(x, y, title, size=HEADING, bold=True, color=color)
    tint, opacity = (color, 0.3) if pruned else (PALE, 1.0)
    for number, prediction in enumerate(predictions):
        top = y + 8 + number * ROW
        share = percent(prediction.share)
        drawing.box((x, top, width, ROW - 3), BAR)
        drawing.box((x, top, max(2.0, width * prediction.share), ROW - 3), tint, opacity=opacity)
        drawing.text(x + 6, top + 15, prediction.label, bold=number == 0,
                     width=width - 20 - text_width(share))  # fmt: skip
        drawing.text(x + width - 6, top + 15, share, align="right")


def _add_tiles(
    drawing: Drawing, scene: Scene, views: Sequence[Views], edge: float, across: int,
    corner: tuple[float, float], apart: float, *, answer: bool = True, pale: bool = False,
) -> None:  # fmt: skip
    """Draw the views of each image side by side, with caption and answer below."""
    (left, y), width = corner, len(views[0]) * (edge + TOUCH) - TOUCH
    for first in range(0, len(scene.stories), across):
        row = range(first, min(first + across, len(scene.stories)))
        # All frames of a film have one size: leave room for the answer before it is there.
        lines = max(max(1, len(_answer(scene.stories[number], width))) for number in row)
        for column, number in enumerate(row):
            story, x = scene.stories[number], left + column * (width + apart)
            height, stage = _height(story, edge), None
            for index, stage in enumerate(views[number]):
                place = (x + index * (edge + TOUCH), y, edge, height)
                drawing.panel(place, scene.images[number], stage, lines=scene.lines, pale=pale)
            kept = story.patches if stage is None else stage.kept
            _add_verdict(drawing, scene, number, (x, y + height), width, kept, answer)
        y += max(_height(scene.stories[number], edge) for number in row) + BELOW + lines * LINE
    drawing.height = y + MARGIN / 2


def _add_verdict(
    drawing: Drawing, scene: Scene, number: int, corner: tuple[float, float], width: float,
    kept: int, answer: bool,
) -> None:  # fmt: skip
    """Write caption, number of patches left, and the predictions before and after."""
    (x, y), story = corner, scene.stories[number]
    left = f"{kept} of {story.patches}"
    drawing.text(x, y + 18, scene.captions[number], color=QUIET,
                 width=width - text_width(left) - 8)  # fmt: skip
    drawing.text(x + width, y + 18, left, color=QUIET, align="right")
    color = INK
    if answer and story.before:
        color = SAME if story.same_answer else OTHER
    for index, line in enumerate(_answer(story, width, answer)):
        drawing.text(x, y + 37 + index * LINE, line, bold=True, color=color)


def _answer(story: Story, width: float, after: bool = True) -> list[str]:
    """Say what the model predicts before and `after`, in full, on as many lines as needed."""
    if not story.before:
        return []
    unpruned, pruned = story.before[0], story.after[0]
    words = f"{unpruned.label}: {percent(unpruned.share)}"
    if not after:
        return wrap(words, width, bold=True)
    if story.same_answer:
        return wrap(f"{words} → {percent(pruned.share)}", width, bold=True)
    other = f"→ {pruned.label}: {percent(pruned.share)}"
    both = wrap(f"{words} {other}", width, bold=True)
    if len(both) == 1:
        return both
    return wrap(words, width, bold=True) + wrap(other, width, bold=True)


def _add_progress(drawing: Drawing, scene: Scene, step: int, y: float) -> float:
    """Draw where the film is: a bar with a part for each stage."""
    steps, width = max(1, scene.steps), drawing.width - 2 * MARGIN
    longest = max((story.moments() for story in scene.stories), key=len)
    words = longest[step].title if step else "all patches"
    y += 8
    drawing.text(MARGIN, y + 6, words, size=15, bold=True)
    part = (width - 140) / steps
    for index in range(steps):
        fill = ACCENT if index < step else PALE
        drawing.box((MARGIN + 140 + index * part, y - 3, part - 3, 8), fill)
    return y + 24


def _add_heads(drawing: Drawing, story: Story, y: float) -> float:
    """Draw a map for each head of every stage, pale where VHF leaves it out."""
    assert story.heads is not None
    height, width = _height(story, MAP), drawing.width - 2 * MARGIN
    num_heads = max(len(view.used) for view in story.heads)
    per_line = min(num_heads, int((width + APART) // (MAP + APART)))
    step = height + 26
    wide, deep = per_line * (MAP + APART) + 16, 24 + math.ceil(num_heads / per_line) * step
    across = max(1, int((width + 16 + APART) // wide))
    y = _add_heads_title(drawing, story.heads, y + 16) + 26
    for number, view in enumerate(story.heads):
        row, column = divmod(number, across)
        x, top = MARGIN + column * wide, y + row * deep
        words = f"block {view.block}" + ": none in range" * view.none_in_range
        words += ": no filter" * (view.vhf is None)
        drawing.text(x, top, words, color=QUIET, width=wide - 10)
        for head, used in enumerate(view.used):
            line, place = divmod(head, per_line)
            left, above = x + place * (MAP + APART), top + 8 + line * step
            variance = view.variance[head]
            label = f"{variance:.0f}" if variance >= 10 else f"{variance:.2g}"
            drawing.heat((left, above, MAP, height), view.importance[head], pale=not used)
            drawing.text(left, above + height + 15, label if used else f"{label} out", size=12,
                         bold=not used, color=INK if used else OTHER)  # fmt: skip
    return y + math.ceil(len(story.heads) / across) * deep


def _add_heads_title(drawing: Drawing, views: Sequence[HeadsView], y: float) -> float:
    title = "What each head votes for, and the variance of its votes"
    drawing.text(MARGIN, y, title, size=HEADING, bold=True)
    add_scale(drawing, y)
    filters = [view.vhf for view in views if view.vhf is not None]
    if not filters:
        return y
    words = "VHF counts the heads with a variance from {:g} to {:g}; if there are none, all heads."
    drawing.text(MARGIN, y + 21, words.format(*filters[0]), color=QUIET)
    return y + 21


def add_scale(drawing: Drawing, y: float, reach: float = REACH) -> None:
    """Say what the colors of heat maps mean, at the right edge."""
    x = drawing.width - MARGIN - 290
    drawing.text(x - 8, y, f"{1 / reach:g} of the mean", size=12, color=QUIET, align="right")
    drawing.heat((x, y - 11, 160, 13), heat_scale(reach), reach=reach)
    drawing.text(x + 168, y, f"{reach:g} times the mean", size=12, color=QUIET)


def _height(story: Story, width: float) -> float:
    return width * story.grid[0] / story.grid[1]
