"""What a search is to do, on what, and what makes two searches the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from optuna.study import StudyDirection
from torch import nn

from ..backbones import backbone
from ..data.images import ImageDataset
from ..data.models import weights_hash
from ..measure.speed import Precision
from ..method import Method
from ..methods import to_data
from . import space

SamplerName = Literal["random", "tpe", "nsga2"]
Measure = Literal["top1", "kl"]


@dataclass(frozen=True)
class SearchConfig:
    """The same for all workers of a search."""

    trials: int
    budget: float | None  # in GMACs; None: the whole front
    measure: Measure
    sampler: SamplerName = "random"
    seed: int = 0

    @property
    def directions(self) -> list[StudyDirection]:
        return directions(self.measure, front=self.budget is None)


def directions(measure: Measure, front: bool) -> list[StudyDirection]:
    best = StudyDirection.MAXIMIZE if measure == "top1" else StudyDirection.MINIMIZE
    return [best, StudyDirection.MINIMIZE] if front else [best]


@dataclass(frozen=True)
class SearchInputs:
    """What is searched on: a model, its images, and how they are run."""

    name: str  # of the model
    source: Mapping[str, Any]  # what `models.load` is told: workers load the model themselves
    model: nn.Module  # as it was loaded
    method: Method
    images: ImageDataset
    data: str  # where they are from
    labelled: bool
    batch: int
    device: str
    precision: Precision
    seed: int
    strict: bool  # stop at the first image that cannot be read

    @property
    def measure(self) -> Measure:
        return "top1" if self.labelled else "kl"

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype


def identify(inputs: SearchInputs, budget: str) -> dict[str, str]:
    """What two searches must have in common for one to go on with the trials of the other.

    Taken before the weights are cast to another precision.
    """
    _, height, width = backbone(inputs.model).input_shape
    return {
        "model": inputs.name,
        "weights": weights_hash(inputs.model)[:16],
        "image size": f"{height}×{width}",
        # Before the data, whose hash tells of labels as well: the first difference is named.
        "objective": "top-1" if inputs.labelled else "KL divergence",
        "data": f"{len(inputs.images)} images {_hash(inputs.images, inputs.labelled)}",
        "budget": budget,
        "method": json.dumps(to_data(inputs.method)),
        "precision": inputs.precision,
        "seed": str(inputs.seed),
        "space": str(space.VERSION),
    }


def _hash(images: ImageDataset, labelled: bool) -> str:
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
