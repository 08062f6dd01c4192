"""ATS: adaptive token sampling, as many tokens as an image needs (Fayyaz et al., ECCV 2022)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ..cost import Geometry
from ..knobs import Dial
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..tokens import Reduction


@dataclass(frozen=True)
class ATS(Method):
    """Each stage samples tokens at `samples` fixed points of the inverse cumulative distribution
    of their significance: the attention of CLS, summed over heads, times the norm of the value.

    A token that is drawn several times stays once, so an image with few significant tokens keeps
    few. Batches stay rectangular: what is missing to `samples` is padding that nobody attends
    to. The stage's own numbers are not used, only its place.

    The points lie in the middles of `samples` equal steps, and each draws the first token at which
    the distribution reaches it, as the paper's text has it. The authors' code spaces its points
    otherwise and draws the token nearest to each; the difference is small.
    """

    name = "ats"
    acts = "middle"
    adaptive = True
    searchable = None
    samples: int = 100

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """The number of samples, in every block from a quarter of the depth on; where attention is
        sharp it prunes more than it is asked to, and has to start later. Samples may exceed the
        tokens by far: one that is drawn again and again counts once."""
        depth, most = geometry.depth, 64 * geometry.patches
        for first in range(depth // 4 + 1, depth):
            yield partial(_sampling, range(first, depth), most)

    def kept(self, stage: Stage, patches: int) -> int:
        return min(self.samples, patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls:
            raise ValueError("ATS scores by the attention of CLS, and this model has no CLS token")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")
        if stage.block == geometry.depth:
            raise ValueError("ATS takes no stage at the last block: nobody would see what it drew")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        attention = seen.rows.row(0)[:, :, seen.prefix :].sum(dim=1)
        norm = seen.feature("value")[:, seen.prefix :].to(attention.dtype).norm(dim=-1)
        score = attention * norm
        score = score / score.sum(dim=-1, keepdim=True)
        order = seen.scorer.descending(-score)
        cumulated = score.gather(1, order).cumsum(dim=-1)
        odd = torch.arange(1, 2 * self.samples, 2, device=score.device, dtype=score.dtype)
        points = (odd / (2 * self.samples)).repeat(score.shape[0], 1)
        drawn = torch.searchsorted(cumulated, points)
        drawn = order.gather(1, drawn.clamp_max(seen.patches - 1))
        hit = torch.zeros_like(score, dtype=torch.bool).scatter(1, drawn, True)
        first = seen.scorer.descending(hit.to(score.dtype))
        keep = first[:, : self.kept(stage, seen.patches)]
        return Reduction(keep, score, valid=hit.gather(1, keep))

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        return geometry.row(stage.block, patches)

    def spared_macs(self, stage: Stage, patches: int, kept: int, geometry: Geometry) -> int:
        """The rows of attention times values, and their projection: ATS samples before both."""
        width = geometry.blocks[stage.block - 1].width
        return (patches - kept) * width * (geometry.prefix + patches + geometry.dim)


def _sampling(blocks: Iterable[int], most: int, cut: float) -> Schedule:
    return Schedule(tuple(Stage(block, 0.5) for block in blocks), ATS(round(most ** (1 - cut))))
