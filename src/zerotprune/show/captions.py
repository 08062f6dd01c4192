"""What stands around the images: title and legend, predictions, verdicts, a film's progress."""

from __future__ import annotations

from .palette import (
    ACCENT,
    BAR,
    COVER,
    INK,
    MERGED_KEY,
    OTHER,
    PALE,
    PALE_COVER,
    QUIET,
    SAME,
    Mark,
)
from .scene import percent
from .sheet import WORDS, Box, Sheet, Text, font, shortened, wrapped
from .story import Story

MARGIN, GAP = 20.0, 10.0
LIST, ROW = 166.0, 24.0  # width of a list of predictions, height of a line in it
LINE = 18.0  # height of a line of text


def add_header(sheet: Sheet, outcome: bool = False) -> float:
    """Title, what was run, and the legend; gives back where the rest begins."""
    wide = sheet.width - 2 * MARGIN
    scene = sheet.scene
    sheet.add(Text(MARGIN, 34, shortened(scene.title, 20, wide), 20, True))
    sheet.add(Text(MARGIN, 57, shortened(scene.about, WORDS, wide), WORDS, colour=QUIET))
    if not scene.steps:
        return 72.0
    x, y = MARGIN, 84.0
    for mark, words in scene.legend(outcome).items():
        long = 40 + font(WORDS).getlength(words)
        if x > MARGIN and x + long - 21 > sheet.width - MARGIN:
            x, y = MARGIN, y + 22
        _add_key(sheet, mark, x, y - 11.5, outcome)
        sheet.add(Text(x + 19, y, shortened(words, WORDS, wide - 19), WORDS))
        x += long
    return y + 18


def _add_key(sheet: Sheet, mark: Mark, x: float, y: float, pale: bool) -> None:
    """A small patch as the drawing marks it; of merged ones, two with an outline."""
    if mark == Mark.MERGED:
        sheet.add(Box(x, y, 13, 13, MERGED_KEY[0], INK), Box(x + 7, y + 1, 5, 11, MERGED_KEY[1]))
        sheet.add(Box(x + 6, y + 1, 1.5, 11, "#FFFFFF"))
        return
    colour = (PALE_COVER if pale else COVER)[mark][0]
    sheet.add(Box(x, y, 13, 13, colour, "#9AA0A6" if pale or mark == Mark.GONE else None))


def add_predictions(
    sheet: Sheet, story: Story, x: float, y: float, wide: float, pruned: bool = False
) -> None:
    """A heading and the likeliest classes, each on a bar as long as its share."""
    title, said, colour = "unpruned", story.before, INK
    if pruned:
        answer, colour = ("same", SAME) if story.same_answer else ("other", OTHER)
        title, said = f"pruned: {answer} answer", story.after
    sheet.add(Text(x, y, title, 15, True, colour=colour))
    tint = PALE if colour == INK else colour
    for number, each in enumerate(said):
        top = y + 8 + number * ROW
        sheet.add(Box(x, top, wide, ROW - 3, BAR))
        sheet.add(Box(x, top, max(2.0, wide * each.share), ROW - 3, tint,
                      opacity=1.0 if tint == PALE else 0.3))  # fmt: skip
        name = shortened(each.label, WORDS, wide - 60)
        sheet.add(Text(x + 6, top + 15, name, WORDS, number == 0))
        sheet.add(Text(x + wide - 6, top + 15, percent(each.share), WORDS, anchor="end"))


def answer_lines(story: Story, wide: float, answer: bool = True) -> list[str]:
    """What the model says before and after, whole: on as many lines as it needs."""
    if not story.before:
        return []
    first, then = story.before[0], story.after[0]
    words = f"{first.label}: {percent(first.share)}"
    if not answer:
        return wrapped(words, WORDS, wide)
    if story.same_answer:
        return wrapped(f"{words} → {percent(then.share)}", WORDS, wide)
    other = f"→ {then.label}: {percent(then.share)}"
    both = wrapped(f"{words} {other}", WORDS, wide)
    return both if len(both) == 1 else wrapped(words, WORDS, wide) + wrapped(other, WORDS, wide)


def add_verdict(
    sheet: Sheet, number: int, x: float, y: float, wide: float, kept: int, answer: bool = True
) -> None:
    """Lines under a tile: what it is, and what the model says before and after."""
    story = sheet.scene.stories[number]
    left = f"{kept} of {story.patches}"
    caption = shortened(sheet.scene.captions[number], WORDS, wide - font(WORDS).getlength(left) - 8)
    sheet.add(Text(x, y + 18, caption, WORDS, colour=QUIET))
    sheet.add(Text(x + wide, y + 18, left, WORDS, anchor="end", colour=QUIET))
    colour = INK
    if answer and story.before:
        colour = SAME if story.same_answer else OTHER
    for at, line in enumerate(answer_lines(story, wide, answer)):
        sheet.add(Text(x, y + 37 + at * LINE, line, WORDS, True, colour=colour))


def add_progress(sheet: Sheet, step: int, y: float) -> float:
    """Where the film is: a bar with a part for each stage."""
    steps, wide = max(1, sheet.scene.steps), sheet.width - 2 * MARGIN
    longest = max((story.moments() for story in sheet.scene.stories), key=len)
    words = longest[step].title if step else "all patches"
    y += 8
    sheet.add(Text(MARGIN, y + 6, words, 16, True))
    part = (wide - 130) / steps
    for at in range(steps):
        fill = ACCENT if at < step else PALE
        sheet.add(Box(MARGIN + 130 + at * part, y - 3, part - 3, 8, fill))
    return y + 24
