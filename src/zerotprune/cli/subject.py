"""Which model on which pictures: the arguments that all measuring commands begin with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cyclopts import Parameter
from torch import nn

from ..data.images import Pictures, open_data, transform_for


@Parameter(name="*")
@dataclass(frozen=True)
class Subject:
    """A command adds its own to these."""

    model: str
    "`demo` or the name of a timm model."
    data: str
    "A folder of class folders, a flat folder with --mapping, tar shards, or hf:DATASET."
    weights: Path | None = None
    "Local weights: safetensors, or a pickle of tensors alone. Default: timm's pretrained ones."
    mapping: Path | None = None
    "For a flat folder: a file with lines `picture label`."
    split: str = "validation"
    "Of a Hugging Face dataset."
    size: int | None = None
    "Side of the pictures in pixels, if not the model's own."
    limit: int | None = None
    "Take only so many pictures, spread evenly over the data."
    strict: bool = False
    "Stop at the first picture that cannot be read; else it is named and left out."
    batch: int = 32
    "Pictures at a time."
    device: str = "auto"
    "cpu, cuda, or auto: cuda where there is one."

    def named(self) -> dict[str, Any]:
        """The model, as `models.load` is told of it."""
        pretrained = self.weights is None
        return {"name": self.model, "weights": self.weights, "pretrained": pretrained,
                "size": self.size}  # fmt: skip

    def pictures(self, model: nn.Module, labelled: bool = True) -> Pictures:
        """Through the model's own transform."""
        return open_data(
            self.data,
            mapping=self.mapping,
            split=self.split,
            limit=self.limit,
            transform=transform_for(model, self.size),
            labelled=labelled,
        )


def chosen_device(name: str) -> str:
    """The device that a user means, if it is there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: use cpu, cuda or auto") from None
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("no CUDA device is to be seen here: use --device cpu")
    return name
