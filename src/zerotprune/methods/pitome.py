"""PiToMe: merge tokens that many others are like (Tran et al., NeurIPS 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ..cost import Geometry
from ..knobs import Dial
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..scoring import ordering
from ..scoring.precision import widened
from ..tokens import Reduction

#: the margin of the energy in the first block; it falls to 0 along a line
MARGIN = 0.9


@dataclass(frozen=True)
class PiToMe(Method):
    """Each stage merges `similar` tokens, between attention and MLP.

    A token has high energy if many others are like it, by the cosine of keys averaged over heads: a
    cosine above a margin counts in full, one below it as exp(cosine − margin) − 1. The margin falls
    with the depth. Of the tokens with the highest energy, twice as many as are to go, every second
    one is merged into the most similar of the others; all with less energy are protected. A budget
    is met by one share in all blocks, as published.
    """

    name = "pitome"
    acts = "middle"
    merges = True
    searchable = "counts"
    proportional: bool = True

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        return [partial(self._share, geometry)]

    def _share(self, geometry: Geometry, cut: float) -> Schedule:
        """One share of the tokens goes in every block, at most half of them."""
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
        keys = widened(seen.vectors("key").mean(dim=1)[:, seen.prefix :])
        count = patches - self.kept(stage, patches)
        if count == 0:
            return Reduction(torch.arange(patches, device=keys.device).expand(keys.shape[0], -1))
        unit = F.normalize(keys, dim=-1)
        alike = unit @ unit.transpose(-2, -1)
        margin = MARGIN * (1 - (stage.block - 1) / seen.geometry.depth)
        energy = torch.where(alike >= margin, alike, torch.expm1(alike - margin)).mean(dim=-1)
        ranked = seen.scorer.descending(energy)
        goes, hosts = ranked[:, : 2 * count : 2], ranked[:, 1 : 2 * count : 2]
        pairs = alike.gather(1, goes.unsqueeze(-1).expand(-1, -1, patches))
        pairs = pairs.gather(2, hosts.unsqueeze(1).expand(-1, count, -1))
        _, into = ordering.largest(pairs)
        keep = torch.cat((hosts, ranked[:, 2 * count :]), dim=1)
        partner = hosts.gather(1, into)
        return Reduction(keep, -energy, similar=goes, partner=partner, into=into)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        block = geometry.blocks[stage.block - 1]
        return patches**2 * (block.width // block.heads)
