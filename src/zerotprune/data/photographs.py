"""Photographs that come with the package, for models that know photographs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from .decoding import decode

FOLDER = Path(__file__).with_name("photographs")
#: Files that are all free to use (see the folder's README), the one to open on first.
NAMES = ("cat", "espresso", "tripod", "rocket")


class Photograph(NamedTuple):
    """A photograph, and what it shows."""

    name: str
    image: Image.Image


def load_photographs(limit: int | None = None) -> list[Photograph]:
    """All of them, or the first so many.

    >>> [each.name for each in load_photographs(2)]
    ['cat', 'espresso']
    """
    return [Photograph(name, decode(FOLDER / f"{name}.jpg")) for name in NAMES[:limit]]
