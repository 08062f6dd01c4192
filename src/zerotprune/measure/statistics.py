"""A mean and its standard error, and the divergence of two distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..shapes import Float


class Mean(NamedTuple):
    """A mean over images and its standard error.

    >>> value, error = Mean.of([1.0, 0.0, 1.0, 0.0])
    >>> f"{value} ± {error:.3f}"
    '0.5 ± 0.289'
    """

    value: float
    error: float

    @classmethod
    def of(cls, values: Float[Tensor, " images"] | Sequence[float], scale: float = 1.0) -> Mean:
        """Return the mean of `values` times `scale`, which is 100 for percent and points."""
        numbers = torch.as_tensor(values, dtype=torch.float64)
        spread = numbers.var(correction=1).item() if len(numbers) > 1 else 0.0
        return cls(scale * numbers.mean().item(), scale * math.sqrt(spread / len(numbers)))

    def to_json(self) -> list[float]:
        return [float(f"{self.value:.5g}"), float(f"{self.error:.3g}")]


def divergence(
    true: Float[Tensor, "*any choices"], other: Float[Tensor, "*any choices"]
) -> Float[Tensor, "*any"]:
    """Return KL(true ‖ other) in nats, from log-probabilities."""
    return (true.exp() * (true - other)).sum(dim=-1).clamp_min(0)
