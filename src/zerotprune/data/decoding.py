"""Decode untrusted images: known formats only, and sizes checked before any pixel is decoded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

#: PIL knows many more, and passes some of them to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 100_000_000
MAX_ASPECT = 20  # enlarging the shorter side of a thin strip would make it huge


class BadImage(ValueError):  # noqa: N818  it says what the file is, not what went wrong here
    """A file that is not a complete image; the message names it."""


def decode(file: Path | BinaryIO, name: str | None = None) -> Image.Image:
    """Decode to RGB as torchvision's loader does: EXIF rotation is ignored, 16-bit grey is scaled.

    Raises:
        BadImage: if the file is not a complete image, or too large.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's remarks on palettes, EXIF and size
        try:
            with Image.open(file, formats=FORMATS) as image:
                check_sides(*image.size)
                return _rgb(image)
        except UnidentifiedImageError:
            formats = ", ".join(FORMATS)
            raise BadImage(f"{name or file} is not an image: expected {formats}") from None
        except Image.DecompressionBombError:
            limit = f"at most {MAX_PIXELS // 10**6} megapixels can be opened"
            raise BadImage(f"{name or file} cannot be decoded: too many pixels, {limit}") from None
        except Exception as error:  # PIL's plugins may fail in any way on a broken file
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadImage(f"{name or file} cannot be decoded: {reason}") from None


def check_sides(width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse images by the size in their header: a small file may decode to gigabytes."""
    if width * height > max_pixels:
        raise ValueError(
            f"it has {width} × {height} = {width * height / 1e6:.1f} megapixels: at most "
            f"{max_pixels // 10**6} megapixels can be opened"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(
            f"it has {width} × {height} pixels: its longer side may be at most {MAX_ASPECT} "
            "times the shorter one"
        )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image.convert("RGB")
    # In some of these modes and versions, PIL's conversion clips at 255.
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its grey values have more than 16 bits")
    return Image.fromarray((values // 256).astype(np.uint8)).convert("RGB")
