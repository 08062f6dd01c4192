"""What makes two searches the same, so that one may go on with the trials of the other."""

from __future__ import annotations

import hashlib

from torch import nn

from ..block import Method
from ..calibrate.calibration import weights_hash
from ..data.images import Pictures
from . import space


def data_hash(images: Pictures, labelled: bool) -> str:
    """Of all images in their order, and their labels; where they lie does not matter."""
    digest = hashlib.sha256()
    for item in images.items:
        try:
            data = item.read()
        except OSError:
            data = b""  # it will be left out, or stop the search, when it is to be decoded
        label = item.label if labelled else ""
        digest.update(f"{label} {len(data)} ".encode() + data)
    return digest.hexdigest()[:16]


def identity(
    name: str,
    model: nn.Module,
    images: Pictures,
    *,
    labelled: bool,
    budget: str,
    method: Method,
    precision: str,
    seed: int,
) -> dict[str, str]:
    """Taken before the weights are cast to another precision."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return {
        "model": name,
        "weights": weights_hash(model)[:16],
        "image size": "×".join(map(str, size or ())),
        # Before the data, whose hash tells of labels as well: the first difference is named.
        "objective": "top-1" if labelled else "KL divergence",
        "data": f"{len(images)} images {data_hash(images, labelled)}",
        "budget": budget,
        "method": repr(method),
        "precision": precision,
        "seed": str(seed),
        "space": str(space.VERSION),
    }
