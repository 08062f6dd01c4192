"""Images from strangers: checked by size and by kind before a single pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

from ..data.decoding import check_sides, decode

MOST_BYTES = 16 * 2**20
MOST_PIXELS = 24_000_000  # fewer than from one's own disk: others may be uploading, too
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
            raise ValueError(
                f"This image has far too many pixels: at most {MOST_PIXELS // 10**6} megapixels "
                "can be opened."
            ) from None
        except Exception:
            raise ValueError(DAMAGED) from None
        try:
            check_sides(*opened.size, MOST_PIXELS)
        except ValueError as error:
            raise ValueError(f"This image{str(error).removeprefix('it')}.") from None
        try:
            if opened.has_transparency_data:
                clear = ImageOps.exif_transpose(opened).convert("RGBA")
                white = Image.new("RGBA", clear.size, "white")
                return Image.alpha_composite(white, clear).convert("RGB")
            return ImageOps.exif_transpose(decode(io.BytesIO(data)))
        except Exception:  # PIL's plugins may fail in any way on a broken file
            raise ValueError(DAMAGED) from None
