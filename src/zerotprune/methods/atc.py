"""ATC: merge the two nearest clusters of tokens, again and again (Haurum et al., ECCV 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..scoring.graph import widen
from ..scoring.indexing import split_top
from ..shapes import Float, Int
from ..tokens import Reduction

Linkage = Literal["single", "complete", "average"]


@dataclass(frozen=True)
class ATC(Method):
    """Merge `similar` tokens, between attention and MLP, by agglomerative clustering.

    Every token is a cluster at first. The two nearest clusters are joined, again and again, until
    as many are left as the stage keeps; the tokens of each are merged by means weighted by size.
    The distance of two tokens is 1 − the cosine of their keys, averaged over heads. A budget keeps
    one share of the tokens at 4/12, 7/12 and 10/12 of the depth, as published.

    Args:
        linkage: The distance of two clusters: the least of those between their tokens (single), the
            greatest (complete), or the mean (average).
        proportional: Let attention be proportional to the size of a token.
    """

    name = "atc"
    acts = "middle"
    merges = True
    searchable = "counts"
    linkage: Linkage = "average"
    proportional: bool = True

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        """Turn the share that each stage keeps."""
        blocks = sorted({max(1, round(geometry.depth * twelfth / 12)) for twelfth in (4, 7, 10)})

        def turn(cut: float) -> Schedule:
            left, stages = geometry.patches, []
            for number, block in enumerate(blocks, start=1):
                kept = max(1, int(geometry.patches * (1 - cut) ** number + 1e-9))
                stages.append(Stage(block, similar=left - kept))
                left = kept
            return Schedule(tuple(stages), self)

        return [turn]

    def kept(self, stage: Stage, patches: int) -> int:
        return max(1, patches - stage.similar)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if stage.keep < 1:
            raise ValueError("ATC merges `similar` tokens and drops none: leave keep at 1")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        patches = seen.patches
        count = self.kept(stage, patches)
        keys = widen(seen.vectors("key").mean(dim=1)[:, seen.prefix :])
        if count == patches:
            return Reduction(torch.arange(patches, device=keys.device).expand(keys.shape[0], -1))
        unit = F.normalize(keys, dim=-1)
        cluster = agglomerate(1 - unit @ unit.transpose(-2, -1), patches - count, self.linkage)
        # The first token of a cluster stays, at the place of that cluster among all.
        stays = (cluster == torch.arange(patches, device=keys.device)).to(keys.dtype)
        gone, keep = split_top(1 - stays, patches - count, seen.scorer.descending)
        partner = cluster.gather(1, gone)
        place = stays.cumsum(dim=-1).to(torch.int64) - 1
        return Reduction(keep, similar=gone, partner=partner, into=place.gather(1, partner))

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        if self.kept(stage, patches) == patches:
            return 0
        block = geometry.blocks[stage.block - 1]
        return patches**2 * (block.width // block.heads)


def agglomerate(
    distance: Float[Tensor, "batch patches patches"], merges: int, linkage: Linkage
) -> Int[Tensor, "batch patches"]:
    """Join the two nearest clusters `merges` times, and return the first token of the cluster that
    each token is in. Ties go to the lowest indices.

    Args:
        distance: Of the tokens.
        merges: How often.
        linkage: The distance of two clusters.

    >>> points = torch.tensor([[0.0, 8.0, 1.0, 9.5, 3.0]])
    >>> agglomerate((points.unsqueeze(2) - points.unsqueeze(1)).abs(), 3, "complete").tolist()
    [[0, 1, 0, 1, 0]]
    """
    batch, patches, _ = distance.shape
    index = torch.arange(patches, device=distance.device)
    # A product is symmetric only up to rounding. No token is a neighbor of itself.
    between = torch.minimum(distance, distance.transpose(1, 2))
    between = torch.where(index == index.unsqueeze(1), torch.inf, between)
    size = torch.ones_like(between[:, 0])
    cluster = index.expand(batch, -1)
    for _ in range(merges):
        first = between.amin(dim=2).argmin(dim=1, keepdim=True)
        second = between.gather(1, first.unsqueeze(2).expand(-1, -1, patches)).argmin(dim=2)
        pair = torch.cat((first, second), dim=1)
        rows, sizes = pair.unsqueeze(2).expand(-1, -1, patches), size.gather(1, pair)
        joined = _joined(between.gather(1, rows), sizes, linkage)
        total = sizes.sum(dim=1, keepdim=True)
        size = size.scatter(1, pair, torch.cat((total, torch.zeros_like(total)), dim=1))
        # The first of the pair stands for both. The second, and those before it, are far from all.
        joined = torch.where(size > 0, joined, torch.inf).scatter(1, first, torch.inf)
        both = torch.stack((joined, torch.full_like(joined, torch.inf)), dim=1)
        between.scatter_(1, rows, both)
        between.scatter_(2, rows.transpose(1, 2), both.transpose(1, 2))
        cluster = torch.where(cluster == second, first, cluster)
    return cluster


def _joined(
    pair: Float[Tensor, "batch 2 patches"], sizes: Float[Tensor, "batch 2"], linkage: Linkage
) -> Float[Tensor, "batch patches"]:
    """Return the distances of two joined clusters from all others (Lance and Williams)."""
    if linkage == "single":
        return pair.amin(dim=1)
    if linkage == "complete":
        return pair.amax(dim=1)
    share = sizes / sizes.sum(dim=1, keepdim=True)
    return (pair * share.unsqueeze(2)).sum(dim=1)
