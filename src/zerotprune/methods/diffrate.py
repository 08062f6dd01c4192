"""DiffRate at given counts: prune the unimportant, merge the next (Chen et al., ICCV 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..cost import Geometry
from ..knobs import Dial, spread_evenly
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage
from ..scoring.graph import cls_attention
from ..tokens import Reduction


@dataclass(frozen=True)
class DiffRate(Method):
    """Each stage sorts the tokens by the attention of CLS, prunes all but the share `keep`, and
    merges the `similar` least important of the rest, each into the most similar of the others.

    DiffRate learns these counts for each block; here the schedule gives them.
    """

    name = "diffrate"
    acts = "middle"
    merges = True
    searchable = False
    proportional: bool = True

    def dials(self, geometry: Geometry) -> list[Dial]:
        """Half pruned and half merged, the same counts in all blocks."""

        def turn(cut: float) -> Schedule:
            each, patches, stages = cut * geometry.patches / 2, geometry.patches, []
            counts = spread_evenly(each / 2, geometry.depth)
            for block, count in enumerate(counts, start=1):
                prune = min(count, patches - 1)
                merge = min(count, patches - prune - 1)
                stages.append(Stage(block, (patches - prune) / patches, merge))
                patches -= prune + merge
            return Schedule(tuple(stages), self)

        return [turn]

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

    def decides_after(self) -> Part:
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
