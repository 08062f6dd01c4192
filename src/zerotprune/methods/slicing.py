"""Slicing: keep the first tokens, look at nothing. The speed that no real method can beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..block import Reduction, Seen
from ..cost import Geometry
from ..schedule import Stage


@dataclass(frozen=True)
class Slicing:
    def kept(self, stage: Stage, patches: int) -> int:
        return stage.kept(patches)

    def check(self, stage: Stage, patches: int, cls: bool) -> None:
        pass

    def wants_graph(self, stage: Stage) -> bool:
        return False

    def wants_history(self) -> bool:
        return False

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        source = seen.tokens.source
        count = self.kept(stage, seen.patches)
        return Reduction(torch.arange(count, device=source.device).expand(source.shape[0], -1))

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        return 0
