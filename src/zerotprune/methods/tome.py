"""ToMe: merge the most similar tokens in every block (Bolya et al., Token Merging, ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cost import Geometry
from ..knobs import Dial, spread_evenly
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..tokens import Reduction


@dataclass(frozen=True)
class ToMe(Method):
    """Each stage merges `similar` tokens (the paper's r), between attention and MLP.

    Every second token is matched with its most similar one of the others, by the cosine of their
    keys averaged over heads; the most similar pairs become their mean, weighted by the patches
    already in them. With `proportional` the logarithm of that number is added to a token's
    logits in later attention; without it this is ToMe-uni.
    """

    name = "tome"
    variants: ClassVar = {"tome-uni": {"proportional": False}}
    acts = "middle"
    merges = True
    searchable = "counts"
    proportional: bool = True

    def dials(self, geometry: Geometry) -> list[Dial]:
        """The paper's r, the same in all blocks as nearly as whole numbers allow."""

        def turn(cut: float) -> Schedule:
            counts = spread_evenly(cut * geometry.patches / 2, geometry.depth)
            stages = (Stage(block, 1.0, count) for block, count in enumerate(counts, start=1))
            return Schedule(tuple(stages), self)

        return [turn]

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - min(stage.similar, patches // 2)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if stage.keep < 1:
            raise ValueError("ToMe merges `similar` tokens and drops none: leave keep at 1")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        patches, prefix = seen.patches, seen.prefix
        keys = seen.vectors("key").mean(dim=1)[:, prefix:]
        if self.kept(stage, patches) == patches:
            return Reduction(torch.arange(patches, device=keys.device).expand(keys.shape[0], -1))
        count = patches - self.kept(stage, patches)
        # Tokens are dealt out with the prefix counted in: CLS is the first of the mergeable group.
        found = seen.scorer.fold(keys, count, first=prefix % 2)
        return Reduction(found.keep, similar=found.gone, partner=found.partner, into=found.into)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        block = geometry.blocks[stage.block - 1]
        return (patches // 2) * (patches - patches // 2) * (block.width // block.heads)
