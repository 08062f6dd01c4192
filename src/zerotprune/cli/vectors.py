"""What the commands share that make vectors: how a model is loaded for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from .options import MODEL


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class VectorModelOptions:
    """How a model is loaded whose vectors are wanted: its classes do not matter."""

    weights: Path | None = None
    "Local weights: safetensors, or a pickle of tensors alone. Default: the published ones."
    size: int | None = None
    "Side of the images in pixels, if not the model's own."
    device: str = "auto"
    "cpu, cuda, or auto: cuda if there is one."

    def named(self, model: str) -> dict[str, Any]:
        """Return the arguments of `models.load`."""
        return {"name": model, "weights": self.weights, "pretrained": self.weights is None,
                "size": self.size}  # fmt: skip
