"""A sheet: what is to be drawn and where, in plain shapes, for any way of drawing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from PIL import Image, ImageFont
from torch import Tensor

from ..shapes import Float
from ..tracing import Fate
from .painting import REACH
from .story import StageView, Story

INK, QUIET, PALE = "#1A1A1A", "#5F6368", "#E4E6E8"
WORDS = 14.0  # size of most text
SAME, OTHER = "#00795A", "#B34700"  # the pruned model gives the same answer, or another


@dataclass(frozen=True)
class Scene:
    """All that a drawing tells: pictures as the model sees them, and their stories."""

    title: str
    about: str
    pictures: list[Image.Image]
    stories: list[Story]
    captions: list[str]
    lines: bool = False  # from each similar patch to its partner
    merges: bool = False  # are similar patches merged with their partners, not dropped?

    @property
    def steps(self) -> int:
        """Stages of the picture that has most of them."""
        return max((len(story.stages) for story in self.stories), default=0)

    def legend(self, outcome: bool = False) -> dict[Fate, str]:
        """What the colours that occur mean; in an outcome, nothing was dropped before."""
        words = {
            Fate.SIMILAR: "merged with a similar one"
            if self.merges
            else "dropped: similar to another",
            Fate.UNIMPORTANT: "dropped: unimportant",
            Fate.GONE: "dropped before",
        }
        views = [view for story in self.stories
                 for view in ([story.outcome()] if outcome else story.stages)]  # fmt: skip
        return {fate: text for fate, text in words.items() if any(map(_holds(fate), views))}


def _holds(fate: Fate) -> Callable[[StageView], bool]:
    return lambda view: bool((view.fate == fate).any())


@dataclass(frozen=True)
class Text:
    """One line of text; y is its baseline."""

    x: float
    y: float
    text: str
    size: float = 12
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = INK


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    outline: str | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Panel:
    """A picture of the scene by its number, with what a stage did to it."""

    x: float
    y: float
    width: float
    height: float
    picture: int
    stage: StageView | None = None


@dataclass(frozen=True)
class Heat:
    """A heat map of importance, pale where it does not count."""

    x: float
    y: float
    width: float
    height: float
    values: Float[Tensor, "rows cols"]
    pale: bool = False
    reach: float = REACH


@dataclass
class Sheet:
    """Shapes in the order in which they are drawn. Lengths are pixels of a screen."""

    scene: Scene
    width: float
    height: float = 0.0
    shapes: list[Text | Box | Panel | Heat] = field(default_factory=list)

    def add(self, *shapes: Text | Box | Panel | Heat) -> None:
        self.shapes += shapes


@lru_cache(maxsize=64)
def font(size: float) -> Any:
    """The face that texts are measured in, and drawn in where there are pixels alone."""
    return ImageFont.load_default(size=size)


def shortened(text: str, size: float, width: float) -> str:
    """The text, or as much of it as the width holds, and an ellipsis."""
    face = font(size)
    if face.getlength(text) <= width:
        return text
    while text and face.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"
