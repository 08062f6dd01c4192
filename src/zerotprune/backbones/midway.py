"""A model entered in the middle: from the input of one of its blocks on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..shapes import Float


@dataclass(frozen=True, eq=False)
class Midway(ABC):
    """The rest of a model, pruned as it is at the call. It holds the model and no state."""

    model: Any

    @abstractmethod
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        """What the model puts out where `x` is the input of this block, counted from 1."""
