"""What the tests of the page share."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

FORM = ("demo", "zero-tprune", "none", 65)  # model, method, rival, percent


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Encode an image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
