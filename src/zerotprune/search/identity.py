"""What makes two searches the same, so that one may go on with the trials of the other."""

from __future__ import annotations

import hashlib
import json

from torch import nn

from ..backbones import backbone
from ..data.images import ImageDataset
from ..data.models import weights_hash
from ..method import Method
from ..methods import to_data
from . import space


def data_hash(images: ImageDataset, labelled: bool) -> str:
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
    images: ImageDataset,
    *,
    labelled: bool,
    budget: str,
    method: Method,
    precision: str,
    seed: int,
) -> dict[str, str]:
    """Taken before the weights are cast to another precision."""
    _, height, width = backbone(model).input_shape
    return {
        "model": name,
        "weights": weights_hash(model)[:16],
        "image size": f"{height}×{width}",
        # Before the data, whose hash tells of labels as well: the first difference is named.
        "objective": "top-1" if labelled else "KL divergence",
        "data": f"{len(images)} images {data_hash(images, labelled)}",
        "budget": budget,
        "method": json.dumps(to_data(method)),
        "precision": precision,
        "seed": str(seed),
        "space": str(space.VERSION),
    }
