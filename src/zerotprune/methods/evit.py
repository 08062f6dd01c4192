"""EViT without its training: keep what CLS attends to, fuse the rest (Liang et al., ICLR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..scoring.graph import cls_attention
from ..tokens import Reduction


@dataclass(frozen=True)
class EViT(Method):
    """Keep the share `keep` (rounded up) with the highest attention of CLS, and fuse all others
    into one token: their sum, weighted by the attention of CLS.

    A head that pools counts the fused token as one patch. Attention has already weighted its parts,
    most of them near 0: counting them all would outweigh the kept tokens.

    Args:
        fuses: Add the fused token. Without it ("evit-drop") the others are dropped, which without
            training is a little closer to the unpruned model.
    """

    name = "evit"
    variants: ClassVar = {"evit-drop": {"fuses": False}}
    acts = "middle"
    searchable = None
    fuses: bool = True

    def dials(self, geometry: Geometry) -> list[Dial]:
        """Turn `keep`, at EViT's blocks: 4/12, 7/12 and 10/12 of the depth."""
        blocks = {max(1, round(geometry.depth * twelfth / 12)) for twelfth in (4, 7, 10)}

        def turn(cut: float) -> Schedule:
            return Schedule(tuple(Stage(block, max(1 - cut, 1e-3)) for block in blocks), self)

        return [turn]

    def kept(self, stage: Stage, patches: int) -> int:
        attentive = self._attentive(stage, patches)
        return min(attentive + self.fuses, patches)

    def _attentive(self, stage: Stage, patches: int) -> int:
        return math.ceil(stage.keep * patches - 1e-9)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls:
            raise ValueError("EViT ranks by the attention of CLS: this model has no CLS token")
        if stage.similar:
            raise ValueError("EViT has no S-stage: leave `similar` at 0")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        attention = cls_attention(seen.rows)[:, seen.prefix :]
        count = self._attentive(stage, seen.patches)
        keep = seen.scorer.top(attention, count)
        if count == seen.patches or not self.fuses:
            return Reduction(keep, attention)
        return Reduction(keep, attention, fused=attention.scatter(1, keep, 0.0))

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        fused = self.fuses and self._attentive(stage, patches) < patches
        return geometry.row(stage.block, patches) + fused * patches * geometry.dim
