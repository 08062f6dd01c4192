"""Slicing: keep the first tokens, at no cost: an upper bound on the speed of any method."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..method import Method, Seen
from ..schedule import Stage
from ..tokens import Reduction


@dataclass(frozen=True)
class Slicing(Method):
    """Keep the first tokens of a stage, as many as Zero-TPrune would."""

    name = "slicing"
    searchable = None

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        source = seen.tokens.source
        count = self.kept(stage, seen.patches)
        return Reduction(torch.arange(count, device=source.device).expand(source.shape[0], -1))
