"""Images that users name: files, and folders of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from ..data.decoding import decode
from ..data.images import open_data
from ..files import bytes_of, printable

MOST = 120  # in one drawing


class NamedImage(NamedTuple):
    """An image and what it is called."""

    name: str
    image: Image.Image


def load_images(
    paths: Sequence[Path], limit: int | None = None, most: int | None = MOST
) -> list[NamedImage]:
    """Every image of the files and folders, upright; a `limit` takes that many, evenly spread."""
    files = [
        Path(name)
        for path in paths
        for name in (open_data(path, labelled=False).paths if path.is_dir() else [path])
    ]
    if limit is not None:
        count = min(limit, len(files))
        files = [files[number * len(files) // count] for number in range(count)]
    if most is not None:
        check_count(len(files), most)
    return [NamedImage(printable(file.name), load_upright(file)) for file in files]


def check_count(count: int, most: int = MOST) -> None:
    if count > most:
        raise ValueError(f"{count} images are too many for one drawing: --limit takes up to {most}")


def load_upright(path: Path) -> Image.Image:
    """One image, turned as the camera that took it says."""
    if not path.exists():
        raise FileNotFoundError(f"no image at {path}")
    return ImageOps.exif_transpose(decode(io.BytesIO(bytes_of(path)), str(path)))
