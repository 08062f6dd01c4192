"""What a model says of an image, as probabilities: of its classes, or, of a model without a head,
of the other images that this one may be most like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..measure.probe import TEMPERATURE
from ..shapes import Float, Int

_NEVER = -1e4  # a logit that is none; infinity less infinity would be no number


class Reading(Protocol):
    def __call__(self, outputs: Sequence[Tensor]) -> list[Float[Tensor, "batch answers"]]:
        """Logarithms of the probabilities, batch by batch, for all images in their order."""

    def classes(self, answers: Int[Tensor, " images"]) -> Int[Tensor, " images"]:
        """The class that an answer stands for."""


def reading(
    has_head: bool, outputs: Sequence[Tensor], labels: Int[Tensor, " images"] | None
) -> Reading:
    """How a model is read, given what it says unpruned."""
    if has_head:
        return _Classes()
    return _Others(torch.cat(list(outputs)), labels)


class _Classes:
    def __call__(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        return [each.float().log_softmax(dim=-1) for each in outputs]

    def classes(self, answers: Tensor) -> Tensor:
        return answers


class _Others:
    """Likeness by the cosine to what the unpruned model made of every other image, and classes
    by the nearest one: what a search by features would find."""

    def __init__(self, features: Float[Tensor, "images width"], labels: Tensor | None) -> None:
        if features.dim() != 2:
            raise ValueError(
                "a search needs one feature vector for each image of a model without a head, "
                f"this model gives {tuple(features.shape[1:])}"
            )
        self._held, self._labels = F.normalize(features.float(), dim=-1), labels

    def __call__(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        answers, first = [], 0
        for each in outputs:
            likeness = F.normalize(each.float(), dim=-1) @ self._held.T / TEMPERATURE
            own = torch.arange(first, first + len(each), device=each.device).unsqueeze(1)
            answers.append(likeness.scatter(1, own, _NEVER).log_softmax(dim=-1))
            first += len(each)
        return answers

    def classes(self, answers: Tensor) -> Tensor:
        assert self._labels is not None
        return self._labels[answers]
