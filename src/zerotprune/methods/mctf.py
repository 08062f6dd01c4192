"""MCTF: fuse tokens that are alike, matter little and are small (Lee et al., CVPR 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cost import Geometry
from ..knobs import Dial, merge_evenly, spread_evenly
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..scoring import ordering
from ..scoring.graph import average_attention
from ..scoring.precision import widened
from ..shapes import Float
from ..tokens import Reduction
from .fold import Fold

Counts = Literal["even", "fold"]

#: the published temperatures: by which power informativeness and size count in the matching
INFORMATIVE, SIZE = 1 / 20, 1 / 40


@dataclass(frozen=True)
class MCTF(Method):
    """Each stage fuses `similar` tokens, between attention and MLP.

    Two tokens are worth fusing by three criteria at once: they are alike (cosine of the block's
    inputs), uninformative (the attention that they receive) and small (patches fused into them).
    Half of the tokens go from one group into the other, the other half the opposite way. What is
    fused becomes a mean, weighted by the attention received and by size.

    Published, tokens are fused before the attention of a block: see `EarlyMCTF`. Here they are
    fused after it, hence the name.

    counts: what a budget is met with: "even", the published way, as many in every block; or "fold",
            the stages of Fold ("mctf-after-fold")

    >>> MCTF(counts="fold").merges
    True
    """

    name = "mctf-after"
    variants: ClassVar = {"mctf-after-fold": {"counts": "fold"}}
    acts = "middle"
    merges = True
    searchable = "counts"
    counts: Counts = "even"
    proportional: bool = True

    def __post_init__(self) -> None:
        if self.counts not in get_args(Counts):
            raise ValueError(
                f"counts must be one of {', '.join(get_args(Counts))}, got {self.counts!r}"
            )

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        if self.counts == "even":
            return [partial(merge_evenly, geometry, self)]
        return [partial(self._turned, dial) for dial in Fold().dials(geometry)]

    def _turned(self, dial: Dial, cut: float) -> Schedule | None:
        schedule = dial(cut)
        return None if schedule is None else schedule.by(self)

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - min(stage.similar, patches // 2)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if stage.keep < 1:
            raise ValueError("MCTF fuses `similar` tokens and drops none: leave keep at 1")

    def wants_columns(self, stage: Stage) -> bool:
        return True

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        patches, batch = seen.patches, seen.tokens.x.shape[0]
        place = torch.arange(patches, device=seen.tokens.x.device)
        count = patches - self.kept(stage, patches)
        if count == 0:
            return Reduction(place.expand(batch, -1))
        assert seen.columns is not None
        received = average_attention(seen.columns)[:, seen.prefix :]
        size = None if seen.tokens.size is None else seen.tokens.size[:, seen.prefix :]
        # Tokens are dealt out with the prefix counted in, as in ToMe.
        first = seen.prefix % 2
        group_a, group_b = place[first::2], place[1 - first :: 2]
        worth = _worth(seen.x_pre[:, seen.prefix :], received, size, first)
        # There: some of A into B. Back: some of B into what is left of A.
        best, choice = ordering.largest(worth)
        gone_a, stay_a = ordering.parted(best, count // 2, seen.scorer.descending)
        back = worth.gather(1, stay_a.unsqueeze(-1).expand(-1, -1, len(group_b))).transpose(1, 2)
        best, chosen = ordering.largest(back)
        gone_b, stay_b = ordering.parted(best, count - count // 2, seen.scorer.descending)
        # Where each token of B is in the end: in its own place, or in that of its host in A.
        own = torch.arange(stay_b.shape[1], device=place.device).expand(batch, -1)
        host = chosen.gather(1, gone_b)
        at = torch.zeros_like(chosen).scatter(1, stay_b, own + stay_a.shape[1])
        at = at.scatter(1, gone_b, host)
        into = torch.cat((at.gather(1, choice.gather(1, gone_a)), host), dim=1)
        keep = torch.cat((group_a[stay_a], group_b[stay_b]), dim=1)
        gone = torch.cat((group_a[gone_a], group_b[gone_b]), dim=1)
        return Reduction(
            keep,
            received,
            similar=gone,
            partner=keep.gather(1, into),
            into=into,
            weight=received if size is None else received * size,
        )

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        pairs = (patches // 2) * (patches - patches // 2)
        return geometry.votes(stage.block, patches) + pairs * geometry.dim


@dataclass(frozen=True)
class EarlyMCTF(MCTF):
    """MCTF as published: a stage fuses tokens before the attention of its block.

    What the attention of all tokens would be decides, one step ahead. It is not computed again for
    the fused tokens: they receive the sum of what their tokens received, and pay the mean of what
    these paid. A budget is met as in the authors' runs, by as many in each block but the first; or
    in the stages of Fold ("mctf-fold").
    """

    name = "mctf"
    variants: ClassVar = {"mctf-fold": {"counts": "fold"}}
    acts = "start"

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        if self.counts == "even":
            return [partial(self._after_first, geometry)]
        return super().dials(geometry)

    def _after_first(self, geometry: Geometry, cut: float) -> Schedule:
        """The same number in each block from the second on, at most half of the tokens."""
        left, stages = geometry.patches, []
        counts = spread_evenly(cut * left / 2, geometry.depth - 1)
        for block, count in enumerate(counts, start=2):
            stages.append(Stage(block, 1.0, min(count, left // 2)))
            left -= stages[-1].similar
        return Schedule(tuple(stages), self)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """The matching, and by how much the block's attention differs from that of all tokens: the
        fused ones are projected again, and weigh and project fewer values."""
        tokens, left, one, output, width = self._attention(stage, patches, geometry)
        again = left * (3 * one + output) - tokens * output
        return super().macs(stage, patches, geometry) + again + (left**2 - tokens**2) * width

    def spared_macs(self, stage: Stage, patches: int, kept: int, geometry: Geometry) -> int:
        """The values of all tokens, and q and k of the fused ones: the authors compute neither."""
        tokens, left, one, _, _ = self._attention(stage, patches, geometry)
        return (tokens + 2 * left) * one

    def _attention(
        self, stage: Stage, patches: int, geometry: Geometry
    ) -> tuple[int, int, int, int, int]:
        """The tokens before and after, the cost of one of q, k and v and of the output for a token,
        and the width of all heads."""
        block = geometry.blocks[stage.block - 1]
        one = (block.attention - block.queries) // 2
        before, after = (geometry.prefix + n for n in (patches, self.kept(stage, patches)))
        return before, after, one, block.queries - one, block.width


def _worth(
    x: Float[Tensor, "batch patches width"],
    received: Float[Tensor, "batch patches"],
    size: Float[Tensor, "batch patches"] | None,
    first: int,
) -> Float[Tensor, "batch group_a group_b"]:
    """The logarithm of the product of the three criteria, for each pair of every second token, from
    place `first` on, and one of the others."""
    a, b = slice(first, None, 2), slice(1 - first, None, 2)
    unit = F.normalize(widened(x), dim=-1)
    alike = (1 + unit[:, a] @ unit[:, b].transpose(-2, -1)) / 2
    tiny = torch.finfo(received.dtype).tiny
    single = -INFORMATIVE * received.clamp_min(tiny).log()
    if size is not None:
        single = single - SIZE * size.log()
    return alike.clamp_min(tiny).log() + single[:, a, None] + single[:, None, b]
