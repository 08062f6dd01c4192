"""DiffRate at given counts: prune the unimportant, merge the next (Chen et al., ICCV 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..block import Method, Seen
from ..cost import Geometry
from ..schedule import Stage
from ..scoring.graph import cls_attention
from ..tokens import Reduction
from .tome import refuse_pooling


@dataclass(frozen=True)
class DiffRate(Method):
    """Each stage sorts the tokens by the attention of CLS, prunes all but the share `keep`, and
    merges the `similar` least important of the rest, each into the most similar of the others.

    DiffRate learns these counts for each block; here the schedule gives them.
    """

    place = "middle"
    proportional: bool = True

    def kept(self, stage: Stage, patches: int) -> int:
        return stage.share(patches) - stage.similar

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls:
            raise ValueError("DiffRate ranks by the attention of CLS; this model has no CLS token")
        if stage.similar >= stage.share(patches):
            raise ValueError(
                f"the stage at block {stage.block} merges {stage.similar} tokens, but only "
                f"{stage.share(patches)} are left after its pruning"
            )
        refuse_pooling(geometry, "merged")

    def waits_for(self) -> Literal["attention", "projection", "mlp"]:
        return "projection"

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        importance = cls_attention(seen.rows)[:, seen.prefix :]
        order = seen.scorer.descending(importance)
        rest = order[:, : stage.share(seen.patches)]
        keep = rest[:, : self.kept(stage, seen.patches)]
        if not stage.similar:
            return Reduction(keep, importance)
        merged = rest[:, keep.shape[1] :]
        x = seen.tokens.x[:, seen.prefix :]
        _, into = seen.scorer.nearest(x, merged, keep)
        partner = torch.gather(keep, 1, into)
        return Reduction(keep, importance, similar=merged, partner=partner, into=into)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        pairs = stage.similar * self.kept(stage, patches)
        return geometry.row(stage.block, patches) + pairs * geometry.dim
