"""Uploaded images of every kind, and files that only look like one."""

from __future__ import annotations

import base64
import re
import warnings
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app import encode
from zerotprune.app.uploads import (
    DAMAGED,
    MAX_UPLOAD_BYTES,
    NOT_AN_IMAGE,
    TOO_LARGE,
    decode_upload,
    read_upload,
)


def test_images_of_every_kind_come_in_as_rgb() -> None:
    values = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    rgb = Image.fromarray(values)
    assert (np.asarray(decode_upload(encode(rgb))) == values).all()
    for mode in ("L", "1", "P", "CMYK"):
        kind = "TIFF" if mode == "CMYK" else "PNG"
        assert decode_upload(encode(rgb.convert(mode), kind)).mode == "RGB"
    for kind in ("JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        image = decode_upload(encode(rgb, kind))
        assert (image.mode, image.size) == ("RGB", (4, 4))
    deep = Image.fromarray(np.full((4, 4), 65535 // 2, np.uint16))
    assert decode_upload(encode(deep)).getpixel((0, 0)) == (127, 127, 127)


def test_transparency_is_white_and_exif_turns_the_image() -> None:
    clear = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert decode_upload(encode(clear)).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    assert decode_upload(encode(palette, transparency=0)).getpixel((0, 0)) == (255,) * 3
    turned = Image.Exif()
    turned[0x0112] = 6  # a camera held upright
    assert decode_upload(encode(Image.new("RGB", (8, 4)), "JPEG", exif=turned)).size == (4, 8)


def test_files_that_are_no_images_are_refused() -> None:
    whole = encode(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    for data, message in (
        (b"just some text", NOT_AN_IMAGE),
        (b"", NOT_AN_IMAGE),
        (svg, NOT_AN_IMAGE),
        (b"<!doctype html><html><body>hello</body></html>", NOT_AN_IMAGE),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", NOT_AN_IMAGE),
        (whole[: len(whole) // 2], DAMAGED),
        (encode(Image.new("RGB", (64, 64)))[:60], DAMAGED),
        (bytes(MAX_UPLOAD_BYTES + 1), TOO_LARGE),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            decode_upload(data)


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bombs = [
        (encode(Image.new("1", (6000, 5000))), "6000 × 5000"),
        (encode(Image.new("1", (20_000, 10_000))), "24 megapixels"),
        (encode(Image.new("1", (10_000, 9))), "20 times"),
    ]

    def never(*_: Any) -> None:
        raise AssertionError("a pixel was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    for data, fact in bombs:
        assert len(data) < 2**20
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match=fact):
                decode_upload(data)


def test_base64_from_a_browser() -> None:
    data = encode(Image.new("RGB", (3, 2)))
    assert read_upload(base64.b64encode(data).decode()).size == (3, 2)
    for text, message in (
        ("not base64!", "incomplete"),
        (None, NOT_AN_IMAGE),
        ({"path": "/etc/passwd"}, NOT_AN_IMAGE),
        ("A" * (MAX_UPLOAD_BYTES * 2), TOO_LARGE),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            read_upload(text)
