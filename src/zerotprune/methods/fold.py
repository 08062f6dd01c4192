"""Fold, our own: merge what matters little into what is like it, late and by a formula."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Literal, get_args

import torch
from torch import Tensor

from ..cost import Geometry
from ..knobs import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage
from ..scoring.graph import average_attention, cls_attention
from ..shapes import Float
from ..tokens import Reduction

Importance = Literal["both", "cls", "received"]
Feature = Literal["x-pre", "x", "key"]


@dataclass(frozen=True)
class Fold(Method):
    """Each stage folds `similar` tokens into others, between attention and MLP.

    Every second patch token, in the order in which they travel, meets the one of the others into
    which it is folded at the least cost: its importance, and a part of its partner's, times
    (1 − cosine). The cheapest are folded: a mean weighted by the patches in each, as in ToMe (Bolya
    et al., ICLR 2023), whose proportional attention it takes too. That importance should count in
    the matching was found before us, in other forms, by ToMeCIS, MCTF (Lee et al., CVPR 2024) and
    AdaMerge.

    importance: the attention that CLS pays to a token ("cls"), the attention that it receives from
                all ("received"), or their sum, each scaled to mean 1 ("both"); without a CLS token
                "both" is "received"
    features:   what is compared: the block's input ("x-pre"), the tokens after its attention ("x"),
                or the keys ("key")
    of_partner: how much of its partner's importance is added to a token's own
    stages:     in how many blocks a budget's schedule acts, at most; None means in all from its
                first on. Fewer are faster where launches count, and a little less accurate.
    proportional: to which power of its patches later attention goes to a token

    >>> Fold().importance
    'both'
    """

    name = "fold"
    acts = "middle"
    merges = True
    searchable = "counts"
    importance: Importance = "both"
    features: Feature = "x-pre"
    of_partner: float = 0.25
    stages: int | None = None
    proportional: float = 1.0

    def __post_init__(self) -> None:
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"stages must be at least 1, or None for all, got {self.stages}")
        for name in ("of_partner", "proportional"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < inf:
                raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
        for name, choices in (("importance", Importance), ("features", Feature)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(choices))}, "
                    f"got {getattr(self, name)!r}"
                )

    def dials(self, geometry: Geometry) -> list[Dial]:
        """One formula for all budgets, see `folded_shares`."""

        def turn(cut: float) -> Schedule:
            shares = _gathered(folded_shares(cut, geometry.depth), self.stages)
            left, exact, stages = geometry.patches, float(geometry.patches), []
            for block, share in shares.items():
                exact *= 1 - share
                count = min(left - round(exact), left // 2)
                stages.append(Stage(block, similar=count))
                left -= count
            return Schedule(tuple(stage for stage in stages if stage.similar), self)

        return [turn]

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - stage.similar

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if self.importance == "cls" and not geometry.cls:
            raise ValueError("this model has no CLS token to weigh by")
        if stage.keep < 1:
            raise ValueError("Fold merges `similar` tokens and drops none: leave keep at 1")
        if stage.similar > patches // 2:
            raise ValueError(
                f"the stage at block {stage.block} folds {stage.similar} tokens, more than half of "
                f"the {patches} patch tokens there"
            )

    def wants_columns(self, stage: Stage) -> bool:
        return self.importance != "cls"

    def decides_after(self) -> Part:
        return "projection" if self.features == "x" else "attention"

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        weight = self._weight(seen)
        found = seen.scorer.fold(
            self._features(seen), stage.similar, weight, self.of_partner, prefix=seen.prefix
        )
        return Reduction(
            found.keep, weight, similar=found.gone, partner=found.partner, into=found.into
        )

    def _weight(self, seen: Seen) -> Float[Tensor, "batch patches"]:
        """The importance of each patch token; 1 on average, or 2 where it is a sum."""
        parts = []
        if self.importance != "received" and seen.geometry.cls:
            parts.append(cls_attention(seen.rows))
        if self.importance != "cls":
            assert seen.columns is not None
            parts.append(average_attention(seen.columns))
        patches = [part[:, seen.prefix :] for part in parts]
        return torch.stack([part / part.mean(dim=-1, keepdim=True) for part in patches]).sum(dim=0)

    def _features(self, seen: Seen) -> Float[Tensor, "batch tokens width"]:
        if self.features == "key":
            return seen.feature("key")
        return seen.x_pre if self.features == "x-pre" else seen.tokens.x

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        pairs = (patches // 2) * (patches - patches // 2)
        attention = geometry.row if self.importance == "cls" else geometry.votes
        return attention(stage.block, patches) + pairs * geometry.dim


def folded_shares(cut: float, depth: int) -> list[float]:
    """Which share of its tokens each block folds; `cut` goes from 0, none, to 1, the most.

    From a first block on, which is the earlier the more is to go, the share rises and levels off:
    top · x / (x + rise), where x counts blocks from the first; none in the last block. The three
    numbers were chosen for twelve blocks, by the divergence of three models from themselves.

    >>> [round(share, 2) for share in folded_shares(0.5, 12)]
    [0.0, 0.04, 0.1, 0.13, 0.15, 0.17, 0.18, 0.19, 0.19, 0.2, 0.2, 0.0]
    """
    turned = 1.25 * cut
    top, first, rise = 0.3 * turned**0.35, 4.3 * (1 - turned), 3.9 - 2.6 * turned
    shares = []
    for block in range(1, depth):
        x = max(0.0, 12 * block / depth - first)
        share = top * x / (x + rise)
        shares.append(1 - (1 - share) ** (12 / depth))
    return [*shares, 0.0]


def _gathered(shares: list[float], stages: int | None) -> dict[int, float]:
    """The shares of all blocks, by block; or of neighbours together at so many blocks only."""
    active = [block for block, share in enumerate(shares, start=1) if share > 0]
    if stages is None or stages >= len(active):
        return {block: shares[block - 1] for block in active}
    gathered = {}
    for stage in range(stages):
        begin, end = (round(len(active) * at / stages) for at in (stage, stage + 1))
        group = active[begin:end]
        gathered[group[(len(group) - 1) // 2]] = 1 - prod(1 - shares[block - 1] for block in group)
    return gathered
