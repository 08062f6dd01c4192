"""What the tests of the page share."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

FORM = ("demo", "zero-tprune", "none", 65)  # model, method, rival, percent


def encode(image: Image.Image, kind: str = "PNG", **given: Any) -> bytes:
    """The image as a file."""
    held = io.BytesIO()
    image.save(held, kind, **given)
    return held.getvalue()
