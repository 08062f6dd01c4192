"""ToMe: merge the most similar tokens in every block (Bolya et al., Token Merging, ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from ..cost import Geometry
from ..dials import Dial, merge_evenly
from ..method import Method, Seen
from ..schedule import Stage
from ..tokens import Reduction

#: the mean r, as a share of the patches, above which merging earlier is better
MEAN = 0.085


@dataclass(frozen=True)
class ToMe(Method):
    """Merge `similar` tokens (the paper's r), between attention and MLP.

    Every second token is matched with the most similar of the others, by the cosine of their keys
    averaged over heads. The most similar pairs are merged by means weighted by size.

    Args:
        proportional: Add the logarithm of a token's size to its logits in later attention. Without
            it this is ToMe-uni.
        inflect: How a budget is spread over the blocks, as in ToMe's code: 0 merges the same number
            at each, 1 a number that grows along a line from 0 to twice the mean, −1 one that falls.
            None takes the best of the three at each budget (benchmarks.search.rivals): the first of
            1, 0 and −1 whose mean is at most `MEAN` of the patches, else −1.
    """

    name = "tome"
    variants: ClassVar = {"tome-uni": {"proportional": False}}
    acts = "middle"
    merges = True
    searchable = "counts"
    proportional: bool = True
    inflect: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inflect is not None and not -1 <= self.inflect <= 1:
            raise ValueError(f"inflect must be from -1 to 1, or None, got {self.inflect}")

    def dials(self, geometry: Geometry) -> list[Dial]:
        """Turn the paper's r, spread over the blocks by `inflect`."""
        if self.inflect is not None:
            return [partial(merge_evenly, geometry, self, inflect=self.inflect)]
        return [
            partial(merge_evenly, geometry, self, inflect=1.0, most=MEAN),
            partial(merge_evenly, geometry, self, most=MEAN),
            partial(merge_evenly, geometry, self, inflect=-1.0),
        ]

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - min(stage.similar, patches // 2)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if stage.keep < 1:
            raise ValueError("ToMe merges `similar` tokens and drops none: leave keep at 1")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        patches, prefix = seen.patches, seen.prefix
        keys = seen.vectors("key").mean(dim=1)[:, prefix:]
        count = patches - self.kept(stage, patches)
        if count == 0:
            return Reduction(torch.arange(patches, device=keys.device).expand(keys.shape[0], -1))
        # Tokens alternate between the groups from the first prefix token on, as in ToMe's code.
        folding = seen.scorer.fold(keys, count, first=prefix % 2)
        return Reduction(
            folding.keep, similar=folding.gone, partner=folding.partner, into=folding.into
        )

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        block = geometry.blocks[stage.block - 1]
        return (patches // 2) * (patches - patches // 2) * (block.width // block.heads)
