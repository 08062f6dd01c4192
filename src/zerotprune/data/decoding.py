"""Images from strangers: formats that we name, sides checked before a single pixel is decoded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

#: PIL knows many more, and hands some of them to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 100_000_000
MOST_UNEQUAL = 20  # a strip would be enlarged to a giant when its shorter side is


class BadImage(ValueError):  # noqa: N818  it says what the file is, not what went wrong here
    """A file that is not a whole image; the message names it."""


def decode(file: Path | BinaryIO, name: str | None = None) -> Image.Image:
    """RGB as torchvision's loader makes it, so with EXIF rotation left alone; 16-bit grey scaled.

    What is no whole image, or too large a one, raises `BadImage`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's remarks on palettes, EXIF and size
        try:
            with Image.open(file, formats=FORMATS) as image:
                check_sides(*image.size)
                return _rgb(image)
        except UnidentifiedImageError:
            raise BadImage(f"{name or file} is not an image of a kind that can be read: "
                           f"{', '.join(FORMATS)}") from None  # fmt: skip
        except Image.DecompressionBombError:
            held = f"it has far too many pixels: at most {MOST_PIXELS // 10**6} megapixels"
            raise BadImage(f"{name or file} cannot be decoded: {held} can be opened") from None
        except Exception as error:  # PIL's plugins may fail in any way on a broken file
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadImage(f"{name or file} cannot be decoded: {reason}") from None


def check_sides(width: int, height: int, most: int = MOST_PIXELS) -> None:
    """Refuse by what the header says: a small file may unfold to gigabytes."""
    if width * height > most:
        raise ValueError(
            f"it has {width} × {height} = {width * height / 1e6:.1f} megapixels: at most "
            f"{most // 10**6} megapixels can be opened"
        )
    if max(width, height) > MOST_UNEQUAL * min(width, height):
        raise ValueError(
            f"it has {width} × {height} pixels: its longer side may be at most {MOST_UNEQUAL} "
            "times its shorter one"
        )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image.convert("RGB")
    # PIL's own conversion clips at 255 in some of these modes and versions.
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its grey values have more than 16 bits")
    return Image.fromarray((values // 256).astype(np.uint8)).convert("RGB")
