"""Slicing: keep the first tokens, look at nothing. The speed that no real method can beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..method import Method, Seen
from ..schedule import Stage
from ..tokens import Reduction


@dataclass(frozen=True)
class Slicing(Method):
    """No options: a stage keeps its share of the tokens, the first ones."""

    name = "slicing"
    searchable = None

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        source = seen.tokens.source
        count = self.kept(stage, seen.patches)
        return Reduction(torch.arange(count, device=source.device).expand(source.shape[0], -1))
