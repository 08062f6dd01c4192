"""ATS: adaptive token sampling, as many tokens as a picture needs (Fayyaz et al., ECCV 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..block import Method, Seen
from ..cost import Geometry
from ..schedule import Stage
from ..tokens import Reduction
from .tome import refuse_pooling


@dataclass(frozen=True)
class ATS(Method):
    """Each stage samples tokens at `samples` fixed points of the inverse cumulative distribution
    of their significance: the attention of CLS, summed over heads, times the norm of the value.

    A token that is drawn several times stays once, so a picture with few significant tokens keeps
    few. Batches stay rectangular: what is missing to `samples` is padding that nobody attends
    to. The stage's own numbers are not used, only its place.
    """

    place = "middle"
    adaptive = True
    samples: int = 100

    def kept(self, stage: Stage, patches: int) -> int:
        return min(self.samples, patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls:
            raise ValueError("ATS scores by the attention of CLS, and this model has no CLS token")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")
        if stage.block == geometry.depth:
            raise ValueError("ATS takes no stage at the last block: nobody would see what it drew")
        refuse_pooling(geometry, "padding")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        attention = seen.rows.row(0)[:, :, seen.prefix :].sum(dim=1)
        norm = seen.feature("value")[:, seen.prefix :].to(attention.dtype).norm(dim=-1)
        score = attention * norm
        score = score / score.sum(dim=-1, keepdim=True)
        order = seen.scorer.descending(-score)
        cumulated = score.gather(1, order).cumsum(dim=-1)
        odd = torch.arange(1, 2 * self.samples, 2, device=score.device, dtype=score.dtype)
        points = (odd / (2 * self.samples)).repeat(len(score), 1)
        drawn = torch.searchsorted(cumulated, points)
        drawn = order.gather(1, drawn.clamp_max(seen.patches - 1))
        hit = torch.zeros_like(score, dtype=torch.bool).scatter(1, drawn, True)
        first = seen.scorer.descending(hit.to(score.dtype))
        keep = first[:, : self.kept(stage, seen.patches)]
        return Reduction(keep, score, alive=hit.gather(1, keep))

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        return geometry.row(stage.block, patches)
