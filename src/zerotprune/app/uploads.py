"""Read uploaded images: size and format are checked before a pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import warnings

from PIL import Image, UnidentifiedImageError

from ..data.images import check_sides, decode, upright

MAX_UPLOAD_BYTES = 16 * 2**20
MAX_UPLOAD_PIXELS = 24_000_000  # fewer than for local files: several users may upload at once
UPLOAD_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")

NOT_AN_IMAGE = "This file is not an image. The page reads PNG, JPEG, WebP, GIF, BMP and TIFF."
DAMAGED = "This image is damaged or incomplete and cannot be decoded."
TOO_LARGE = f"This file is larger than {MAX_UPLOAD_BYTES // 2**20} MB: choose a smaller one."


def read_upload(text: object) -> Image.Image:
    """Decode an image that the browser sent as base64.

    Raises:
        ValueError: with a sentence for the page.
    """
    if not isinstance(text, str):
        raise ValueError(NOT_AN_IMAGE)
    if len(text) > MAX_UPLOAD_BYTES * 4 // 3 + 4:
        raise ValueError(TOO_LARGE)
    try:
        return decode_upload(base64.b64decode(text, validate=True))
    except binascii.Error:
        raise ValueError("The image arrived incomplete: try again.") from None


def decode_upload(data: bytes) -> Image.Image:
    """Decode to RGB, upright, with white where it is transparent.

    The header is checked first: a small file may unfold to gigabytes.
    """
    if len(data) > MAX_UPLOAD_BYTES:
        raise ValueError(TOO_LARGE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's about palettes, EXIF and size
        image = _open(data)
        try:
            if not image.has_transparency_data:
                return upright(decode(io.BytesIO(data)))
            image = upright(image).convert("RGBA")
            background = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(background, image).convert("RGB")
        except Exception:  # Pillow's plugins may fail in any way on a broken file
            raise ValueError(DAMAGED) from None


def _open(data: bytes) -> Image.Image:
    """Read the header, and check format and size."""
    try:
        image = Image.open(io.BytesIO(data), formats=UPLOAD_FORMATS)
    except UnidentifiedImageError:
        raise ValueError(NOT_AN_IMAGE) from None
    except Image.DecompressionBombError:
        limit = f"{MAX_UPLOAD_PIXELS // 10**6} megapixels"
        raise ValueError(f"This image has too many pixels: at most {limit} are allowed.") from None
    except Exception:
        raise ValueError(DAMAGED) from None
    try:
        check_sides(*image.size, MAX_UPLOAD_PIXELS)
    except ValueError as error:
        raise ValueError(f"This image{str(error).removeprefix('it')}.") from None
    return image
