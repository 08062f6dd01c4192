"""A sheet: what is to be drawn and where, in plain shapes, for any way of drawing them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from PIL import ImageFont
from torch import Tensor

from ..shapes import Float
from .palette import INK
from .pixels import REACH
from .scene import Scene
from .story import StageView

WORDS = 14.0  # size of most text


@dataclass(frozen=True)
class Text:
    """One line of text; y is its baseline."""

    x: float
    y: float
    text: str
    size: float = 12
    bold: bool = False
    anchor: Literal["start", "end"] = "start"
    colour: str = INK


@dataclass(frozen=True)
class Place:
    """Where a shape is, and how large."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Box(Place):
    """A filled rectangle."""

    fill: str
    outline: str | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Panel(Place):
    """An image of the scene by its number, with what a stage did to it; pale where it is gone."""

    image: int
    stage: StageView | None = None
    pale: bool = False


@dataclass(frozen=True)
class Heat(Place):
    """A heat map of importance, pale where it does not count."""

    values: Float[Tensor, "rows cols"]
    pale: bool = False
    reach: float = REACH


Shape = Text | Box | Panel | Heat


@dataclass
class Sheet:
    """Shapes in the order in which they are drawn. Lengths are pixels of a screen."""

    scene: Scene
    width: float
    height: float = 0.0
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes += shapes


@lru_cache(maxsize=64)
def font(size: float) -> Any:
    """The face that texts are measured in, and drawn in where there are pixels alone."""
    return ImageFont.load_default(size=size)


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The whole text on lines that the width holds; broken inside a word only where it must be.

    >>> wrapped("grocery store: 37 %", 14, 100)
    ['grocery store:', '37 %']
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font(size).getlength(longer) <= width:
            lines[-1] = longer
            continue
        if not lines[-1]:
            lines.pop()
        while len(word) > 1 and font(size).getlength(word) > width:
            fits = next(n for n in range(len(word) - 1, 0, -1)
                        if n == 1 or font(size).getlength(word[:n]) <= width)  # fmt: skip
            lines.append(word[:fits])
            word = word[fits:]
        lines.append(word)
    return lines


def shortened(text: str, size: float, width: float) -> str:
    """The text, or as much of it as the width holds, and an ellipsis."""
    face = font(size)
    if face.getlength(text) <= width:
        return text
    while text and face.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"
