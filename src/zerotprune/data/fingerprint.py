"""Fingerprints: what a result was made from, to check whether a run is the same as before.

A search, a training and a calibration each write a fingerprint beside what they have finished, as
plain names and values, and go on from it only if the fingerprint is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..backbones import backbone
from .images import ImageDataset
from .weights import weights_hash


def check_same(
    stored: Mapping[str, Any], current: Mapping[str, Any], message: str, advice: str = ""
) -> None:
    """Raise ValueError if two fingerprints differ, naming the first difference.

    Args:
        stored: The fingerprint in the file.
        current: The fingerprint of this run; its order decides which difference is the first.
        message: The start of the error message: "FILE belongs to another search".
        advice: What to do about it.
    """
    for name in [*current, *sorted(set(stored) - set(current))]:
        before, now = stored.get(name), current.get(name)
        if before != now:
            difference = f"{name} {_short(before)} there, {_short(now)} here"
            raise ValueError(
                f"{message}: {difference}; {advice}" if advice else f"{message}: {difference}"
            )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 64 or " " in text else f"{text[:12]}…"


def fingerprint_model(name: str, model: nn.Module) -> dict[str, Any]:
    """Return name, shape, image size and weights of a model.

    A model on the meta device has no weights, and always the default image size: its fingerprint
    has neither.
    """
    geometry = backbone(model).geometry
    shape = {"name": name, "depth": geometry.depth, "heads": geometry.blocks[0].heads}
    if any(parameter.is_meta for parameter in model.parameters()):
        return shape
    return {**shape, "patches": geometry.patches, "weights": weights_hash(model)}


def images_hash(images: ImageDataset, labeled: bool) -> str:
    """Return the SHA-256 of all images in order, with their labels, wherever they are stored."""
    digest = hashlib.sha256()
    for item in images.items:
        try:
            data = item.read()
        except OSError:
            data = b""  # decoding it later leaves it out or stops the run
        label = item.label if labeled else ""
        digest.update(f"{label} {len(data)} ".encode() + data)
    return digest.hexdigest()
