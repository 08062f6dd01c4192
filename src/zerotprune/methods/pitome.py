"""PiToMe: merge tokens that are similar to many others (Tran et al., NeurIPS 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..scoring.graph import widen
from ..scoring.indexing import largest
from ..tokens import Reduction

#: the margin at the first block; it falls linearly to 0
MARGIN = 0.9


@dataclass(frozen=True)
class PiToMe(Method):
    """Merge `similar` tokens, between attention and MLP.

    The energy of a token is its mean similarity to all others, by the cosine of keys averaged over
    heads: a cosine above a margin counts in full, one below it as exp(cosine − margin) − 1. The
    margin falls with the depth. Of the 2 · `similar` tokens with the highest energy, every second
    one is merged into the most similar of the others; tokens of less energy are protected. A budget
    merges one share of the tokens at all blocks, as published.

    Args:
        proportional: Let attention be proportional to the size of a token.
    """

    name = "pitome"
    acts = "middle"
    merges = True
    searchable = "counts"
    proportional: bool = True

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        return [partial(self._share, geometry)]

    def _share(self, geometry: Geometry, cut: float) -> Schedule:
        """Merge one share of the tokens at every block, at most half of them."""
        left, stages = geometry.patches, []
        for block in range(1, geometry.depth + 1):
            stages.append(Stage(block, similar=min(round(cut / 2 * left), left // 2)))
            left -= stages[-1].similar
        return Schedule(tuple(stages), self)

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - min(stage.similar, patches // 2)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if stage.keep < 1:
            raise ValueError("PiToMe merges `similar` tokens and drops none: leave keep at 1")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        patches = seen.patches
        keys = widen(seen.vectors("key").mean(dim=1)[:, seen.prefix :])
        count = patches - self.kept(stage, patches)
        if count == 0:
            return Reduction(torch.arange(patches, device=keys.device).expand(keys.shape[0], -1))
        unit = F.normalize(keys, dim=-1)
        cosine = unit @ unit.transpose(-2, -1)
        margin = MARGIN * (1 - (stage.block - 1) / seen.geometry.depth)
        energy = torch.where(cosine >= margin, cosine, torch.expm1(cosine - margin)).mean(dim=-1)
        order = seen.scorer.descending(energy)
        gone, targets = order[:, : 2 * count : 2], order[:, 1 : 2 * count : 2]
        pairs = cosine.gather(1, gone.unsqueeze(-1).expand(-1, -1, patches))
        pairs = pairs.gather(2, targets.unsqueeze(1).expand(-1, count, -1))
        _, into = largest(pairs)
        keep = torch.cat((targets, order[:, 2 * count :]), dim=1)
        partner = targets.gather(1, into)
        return Reduction(keep, -energy, similar=gone, partner=partner, into=into)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        block = geometry.blocks[stage.block - 1]
        return patches**2 * (block.width // block.heads)
