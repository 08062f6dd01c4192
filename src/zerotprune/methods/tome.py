"""ToMe: merge the most similar tokens in every block (Bolya et al., Token Merging, ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from ..cost import Geometry
from ..knobs import Dial, merge_evenly
from ..method import Method, Seen
from ..schedule import Stage
from ..tokens import Reduction

#: the mean of r, as a share of the patches, up to which it is best to merge more in later blocks
LATE = 0.085


@dataclass(frozen=True)
class ToMe(Method):
    """Each stage merges `similar` tokens (the paper's r), between attention and MLP.

    Every second token is matched with its most similar one of the others, by the cosine of their
    keys averaged over heads; the most similar pairs become their mean, weighted by the patches
    already in them. With `proportional` the logarithm of that number is added to a token's
    logits in later attention; without it this is ToMe-uni.

    inflect: how a budget is spread over the blocks, as in ToMe's own code: 0 merges the same number
             in all of them, 1 a number that grows along a line from 0 to twice the mean, −1 one
             that falls. None takes the best of the three at each budget: 1 while the mean is at
             most `LATE` of the patches, else 0 (benchmarks.search.rivals, on two models).
    """

    name = "tome"
    variants: ClassVar = {"tome-uni": {"proportional": False}}
    acts = "middle"
    merges = True
    searchable = "counts"
    proportional: bool = True
    inflect: float | None = None

    def __post_init__(self) -> None:
        value = self.inflect
        if value is not None and not (isinstance(value, (int, float)) and -1 <= value <= 1):
            raise ValueError(f"inflect must be a number from -1 to 1, or None, got {value!r}")

    def dials(self, geometry: Geometry) -> list[Dial]:
        """The paper's r, by its own ways to spread it."""
        if self.inflect is not None:
            return [partial(merge_evenly, geometry, self, inflect=self.inflect)]
        return [
            partial(merge_evenly, geometry, self, inflect=1.0, most=LATE),
            partial(merge_evenly, geometry, self),
        ]

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
