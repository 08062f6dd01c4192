"""MCTF: merge tokens that are similar, uninformative and small (Lee et al., CVPR 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cost import Geometry
from ..dials import Dial, merge_evenly, spread_evenly
from ..method import Method, Seen
from ..schedule import Schedule, Stage
from ..scoring import indexing
from ..scoring.graph import average_attention, widen
from ..shapes import Float
from ..tokens import Reduction
from .fold import Fold

Counts = Literal["even", "fold"]

#: the published temperatures, the powers of informativeness and of size in the matching
INFORMATIVE, SIZE = 1 / 20, 1 / 40


@dataclass(frozen=True)
class MCTF(Method):
    """Merge `similar` tokens, between attention and MLP.

    Pairs are scored by three criteria at once: tokens should be similar (cosine of the inputs of
    the block), uninformative (attention received) and small (patches merged into them). Half of the
    tokens are merged from one group into the other, the other half the opposite way, by means
    weighted by the attention received and by size.

    The published method merges before the attention of a block: see `EarlyMCTF`. This one merges
    after attention, hence the name.

    Args:
        counts: What meets a budget: "even", as published, merges the same number at every block;
            "fold" uses the stages of Fold ("mctf-after-fold").
        proportional: Let attention be proportional to the size of a token.

    >>> MCTF(counts="fold").merges
    True
    """

    name = "mctf-after"
    variants: ClassVar = {"mctf-after-fold": {"counts": "fold"}}
    acts: ClassVar[Literal["start", "middle"]] = "middle"
    merges = True
    searchable = "counts"
    counts: Counts = "even"
    proportional: bool = True

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        if self.counts == "even":
            return [partial(merge_evenly, geometry, self)]
        return [partial(self._turn, dial) for dial in Fold().dials(geometry)]

    def _turn(self, dial: Dial, cut: float) -> Schedule | None:
        schedule = dial(cut)
        return None if schedule is None else schedule.by(self)

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - min(stage.similar, patches // 2)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if stage.keep < 1:
            raise ValueError("MCTF merges `similar` tokens and drops none: leave keep at 1")

    def wants_columns(self, stage: Stage) -> bool:
        return True

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        patches, batch = seen.patches, seen.tokens.x.shape[0]
        index = torch.arange(patches, device=seen.tokens.x.device)
        count = patches - self.kept(stage, patches)
        if count == 0:
            return Reduction(index.expand(batch, -1))
        assert seen.columns is not None
        received = average_attention(seen.columns)[:, seen.prefix :]
        size = None if seen.tokens.size is None else seen.tokens.size[:, seen.prefix :]
        # Tokens alternate between the groups from the first prefix token on, as in ToMe.
        first = seen.prefix % 2
        group_a, group_b = index[first::2], index[1 - first :: 2]
        scores = _pair_scores(seen.x_pre[:, seen.prefix :], received, size, first)
        # First merge some of A into B, then some of B into what is left of A.
        best, choice = indexing.largest(scores)
        gone_a, stay_a = indexing.split_top(best, count // 2, seen.scorer.descending)
        back = scores.gather(1, stay_a.unsqueeze(-1).expand(-1, -1, len(group_b))).transpose(1, 2)
        best, chosen = indexing.largest(back)
        gone_b, stay_b = indexing.split_top(best, count - count // 2, seen.scorer.descending)
        # The index in `keep` of each token of B, or of the token of A that it is merged into.
        kept_b = torch.arange(stay_b.shape[1], device=index.device).expand(batch, -1)
        into_a = chosen.gather(1, gone_b)
        place_b = torch.zeros_like(chosen).scatter(1, stay_b, kept_b + stay_a.shape[1])
        place_b = place_b.scatter(1, gone_b, into_a)
        into = torch.cat((place_b.gather(1, choice.gather(1, gone_a)), into_a), dim=1)
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
    """MCTF as published: merge tokens before the attention of a block.

    The attention of all tokens decides, one step ahead. It is not computed again: a merged token
    receives the sum of what its tokens received, and pays the mean of what they paid. As in the
    authors' runs, a budget merges the same number at every block but the first; "mctf-fold" uses
    the stages of Fold.
    """

    name = "mctf"
    variants: ClassVar = {"mctf-fold": {"counts": "fold"}}
    acts = "start"

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        if self.counts == "even":
            return [partial(self._after_first, geometry)]
        return super().dials(geometry)

    def _after_first(self, geometry: Geometry, cut: float) -> Schedule:
        """Merge the same number at each block from the second on, at most half of the tokens."""
        left, stages = geometry.patches, []
        counts = spread_evenly(cut * left / 2, geometry.depth - 1)
        for block, count in enumerate(counts, start=2):
            stages.append(Stage(block, 1.0, min(count, left // 2)))
            left -= stages[-1].similar
        return Schedule(tuple(stages), self)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Count the matching, and the difference to the attention of all tokens: merged tokens are
        projected again, and fewer values are weighed and projected."""
        tokens, left, one, output, width = self._attention(stage, patches, geometry)
        again = left * (3 * one + output) - tokens * output
        return super().macs(stage, patches, geometry) + again + (left**2 - tokens**2) * width

    def spared_macs(self, stage: Stage, patches: int, kept: int, geometry: Geometry) -> int:
        """Count the values of all tokens, and q and k of merged ones, which the authors skip."""
        tokens, left, one, _, _ = self._attention(stage, patches, geometry)
        return (tokens + 2 * left) * one

    def _attention(
        self, stage: Stage, patches: int, geometry: Geometry
    ) -> tuple[int, int, int, int, int]:
        """Return the tokens before and after, the MACs per token of one of q, k and v and of the
        output, and the width of all heads."""
        block = geometry.blocks[stage.block - 1]
        one = (block.attention - block.queries) // 2
        before, after = (geometry.prefix + n for n in (patches, self.kept(stage, patches)))
        return before, after, one, block.queries - one, block.width


def _pair_scores(
    x: Float[Tensor, "batch patches width"],
    received: Float[Tensor, "batch patches"],
    size: Float[Tensor, "batch patches"] | None,
    first: int,
) -> Float[Tensor, "batch group_a group_b"]:
    """Return the logarithm of the product of the three criteria, for every second token, from
    `first` on, with every other one."""
    a, b = slice(first, None, 2), slice(1 - first, None, 2)
    unit = F.normalize(widen(x), dim=-1)
    similar = (1 + unit[:, a] @ unit[:, b].transpose(-2, -1)) / 2
    tiny = torch.finfo(received.dtype).tiny
    single = -INFORMATIVE * received.clamp_min(tiny).log()
    if size is not None:
        single = single - SIZE * size.log()
    return similar.clamp_min(tiny).log() + single[:, a, None] + single[:, None, b]
