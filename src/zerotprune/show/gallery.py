"""Pictures that users name: files, and folders of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from ..data.images import decode, open_data

MOST = 120  # in one drawing


class Named(NamedTuple):
    """A picture and what it is called."""

    name: str
    picture: Image.Image


def gathered(
    paths: Sequence[Path], limit: int | None = None, most: int | None = MOST
) -> list[Named]:
    """Every picture of the files and folders, upright; a `limit` takes that many, evenly spread."""
    found = [each for path in paths for each in _within(path)]
    if limit is not None:
        count = min(limit, len(found))
        found = [found[number * len(found) // count] for number in range(count)]
    if most is not None and len(found) > most:
        raise ValueError(
            f"{len(found)} pictures are too many for one drawing: take up to {most} with --limit"
        )
    return [Named(Path(path).name, opened(path)) for path in found]


def _within(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [Path(name) for name in open_data(path, labelled=False).paths]


def opened(path: Path) -> Image.Image:
    """One picture, turned as the camera that took it says."""
    if not path.exists():
        raise FileNotFoundError(f"no picture at {path}")
    picture = decode(io.BytesIO(path.read_bytes()), str(path))
    return ImageOps.exif_transpose(picture)
