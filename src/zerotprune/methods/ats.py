"""ATS, adaptive token sampling: as many tokens as an image needs (Fayyaz et al., ECCV 2022)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..tokens import Reduction


@dataclass(frozen=True)
class ATS(Method):
    """Sample tokens by their significance: the attention of CLS, summed over heads, times the norm
    of the value.

    A stage samples at `samples` fixed points of the inverse cumulative distribution. A token that
    is drawn several times stays once, so an image with few significant tokens keeps few. Batches
    stay rectangular: padding, masked in attention, fills up to `samples`. Of a stage only `block`
    is used.

    The points are the middles of `samples` equal steps, and each draws the first token at which the
    distribution reaches it, as in the text of the paper. The authors' code spaces its points
    differently and draws the nearest token; the difference is small.

    Args:
        samples: The number of points, and so the most tokens that a stage keeps.
    """

    name = "ats"
    acts = "middle"
    adaptive = True
    searchable = None
    samples: int = 100

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """Turn the number of samples, at every block from a quarter of the depth on, or later if
        sharp attention prunes too much. There can be far more samples than tokens, as a token that
        is drawn again counts once."""
        depth, most = geometry.depth, 64 * geometry.patches
        for first in range(depth // 4 + 1, depth):
            yield partial(_sampling, range(first, depth), most)

    def kept(self, stage: Stage, patches: int) -> int:
        return min(self.samples, patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls:
            raise ValueError("ATS ranks by the attention of CLS: this model has no CLS token")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")
        if stage.block == geometry.depth:
            raise ValueError(
                "ATS takes no stage at the last block: no later attention would see it"
            )

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        attention = seen.rows.row(0)[:, :, seen.prefix :].sum(dim=1)
        norm = seen.feature("value")[:, seen.prefix :].to(attention.dtype).norm(dim=-1)
        scores = attention * norm
        scores = scores / scores.sum(dim=-1, keepdim=True)
        order = seen.scorer.descending(-scores)
        cumulative = scores.gather(1, order).cumsum(dim=-1)
        odd = torch.arange(1, 2 * self.samples, 2, device=scores.device, dtype=scores.dtype)
        points = (odd / (2 * self.samples)).repeat(scores.shape[0], 1)
        sampled = torch.searchsorted(cumulative, points)
        sampled = order.gather(1, sampled.clamp_max(seen.patches - 1))
        mask = torch.zeros_like(scores, dtype=torch.bool).scatter(1, sampled, True)
        sampled_first = seen.scorer.descending(mask.to(scores.dtype))
        keep = sampled_first[:, : self.kept(stage, seen.patches)]
        return Reduction(keep, scores, valid=mask.gather(1, keep))

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        return geometry.row(stage.block, patches)

    def spared_macs(self, stage: Stage, patches: int, kept: int, geometry: Geometry) -> int:
        """Count attention times values, and the projection: ATS samples before both."""
        width = geometry.blocks[stage.block - 1].width
        return (patches - kept) * width * (geometry.prefix + patches + geometry.dim)


def _sampling(blocks: Iterable[int], most: int, cut: float) -> Schedule:
    return Schedule(tuple(Stage(block, 0.5) for block in blocks), ATS(round(most ** (1 - cut))))
