"""Images from strangers: checked by size and by kind before a single pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

from ..data.images import decode

MOST_BYTES = 16 * 2**20
MOST_PIXELS = 24_000_000
MOST_UNEQUAL = 20  # a strip would be enlarged to a giant when its shorter side is
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")

NOT_AN_IMAGE = "This file is not an image: PNG, JPEG, WebP, GIF, BMP and TIFF can be read."
DAMAGED = "This image is damaged or cut off: it cannot be decoded."
TOO_LARGE = f"This file has more than {MOST_BYTES // 2**20} MB: choose a smaller one."


def read_upload(text: object) -> Image.Image:
    """The image that a browser sent as base64."""
    if not isinstance(text, str):
        raise ValueError(NOT_AN_IMAGE)
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        raise ValueError(TOO_LARGE)
    try:
        return decode_upload(base64.b64decode(text, validate=True))
    except binascii.Error:
        raise ValueError("The image did not arrive whole: try again.") from None


def decode_upload(data: bytes) -> Image.Image:
    """RGB, upright, on white where it is transparent; ValueError with a sentence for the sender.

    What the header says is checked first: a small file may unfold to gigabytes.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(TOO_LARGE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's remarks on palettes, EXIF and size
        try:
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:
            raise ValueError(NOT_AN_IMAGE) from None
        except Image.DecompressionBombError:
            raise ValueError(_too_many("far too many pixels")) from None
        except Exception:
            raise ValueError(DAMAGED) from None
        _check_sides(*opened.size)
        try:
            if opened.has_transparency_data:
                clear = ImageOps.exif_transpose(opened).convert("RGBA")
                white = Image.new("RGBA", clear.size, "white")
                return Image.alpha_composite(white, clear).convert("RGB")
            return ImageOps.exif_transpose(decode(io.BytesIO(data)))
        except Exception:  # PIL's plugins may fail in any way on a broken file
            raise ValueError(DAMAGED) from None


def _check_sides(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise ValueError(_too_many(f"{width} × {height} = {width * height / 1e6:.1f} megapixels"))
    if max(width, height) > MOST_UNEQUAL * min(width, height):
        raise ValueError(
            f"This image has {width} × {height} pixels: its longer side may be at most "
            f"{MOST_UNEQUAL} times its shorter one."
        )


def _too_many(held: str) -> str:
    return f"This image has {held}: at most {MOST_PIXELS // 10**6} megapixels can be opened."
