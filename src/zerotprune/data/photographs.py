"""Photographs that come with the package, for models that know photographs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from .decoding import decode

FOLDER = Path(__file__).with_name("photographs")
#: All free to use (see the folder's README). The page opens with the first.
NAMES = ("cat", "espresso", "tripod", "rocket")


class Photograph(NamedTuple):
    """A photograph, and what it shows."""

    name: str
    image: Image.Image


def load_photographs(limit: int | None = None) -> list[Photograph]:
    """Load all photographs, or the first `limit`.

    >>> [photograph.name for photograph in load_photographs(2)]
    ['cat', 'espresso']
    """
    return [Photograph(name, decode(FOLDER / f"{name}.jpg")) for name in NAMES[:limit]]
