"""Fold, our own method: merge unimportant tokens into similar ones, in a few late blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage
from ..scoring.attention import cls_and_received, pooled_attention, sampled_rows
from ..scoring.graph import average_attention, cls_attention
from ..shapes import Float
from ..tokens import Reduction

Importance = Literal["auto", "both", "rows", "pooled", "cls", "received"]
Feature = Literal["x-pre", "x", "key"]

#: How a budget is met: the first block in twelfths of the depth, the number of stages, and the
#: largest share of its tokens that a stage folds. The first form that reaches the budget is used.
#: Chosen by how far two models diverge from their unpruned selves: benchmarks.search.stages
FORMS = ((6, 5, 0.17), (5, 5, 0.23), (4, 5, 0.33), (3, 7, 0.33), (2, 7, 0.5))
LAST = 10  # the last block with a stage, in twelfths of the depth

#: how many query tokens are sampled, or pooled into, for the attention that a token receives
ROWS, POOLED = 32, 14
#: The most patch tokens with which the attention of all queries is used: larger models need fused
#: attention, which gives single rows only.
ALL_ROWS = 256


@dataclass(frozen=True)
class Fold(Method):
    """Fold `similar` tokens into others, between attention and MLP.

    Every second patch token, in their current order, is paired with the other token that it can be
    folded into at the lowest cost: (1 − cosine) times the token's importance plus a share of its
    partner's. The cheapest pairs are merged by means weighted by size, with proportional attention,
    both as in ToMe (Bolya et al., ICLR 2023). ToMeCIS, MCTF (Lee et al., CVPR 2024) and AdaMerge
    used importance in the matching before us, in other forms.

    Args:
        importance: The attention from CLS ("cls"), the attention received from all tokens
            ("received"), or the sum of both, each scaled to mean 1 ("both"). "rows" is "both" with
            a sample of 32 query tokens, "pooled" with 14 mean queries of neighboring tokens. "auto"
            is "both" up to 256 patches and "rows" beyond. Without a CLS token only received
            attention counts.
        features: What is compared: the input of the block ("x-pre"), the residual stream after
            attention ("x"), or the keys ("key").
        of_partner: The share of the partner's importance that is added to a token's.
        stages: The number of stages that meet a budget; None means 5, and 7 at low budgets.
        proportional: Let attention be proportional to this power of the size of a token.
        keeps_length: Scale a merged token to the mean length of the tokens in it, since their mean
            is shorter. Token Fusion (Kim et al., WACV 2024) keeps lengths in another form.

    >>> Fold().importance
    'auto'
    """

    name = "fold"
    acts = "middle"
    merges = True
    searchable = "counts"
    importance: Importance = "auto"
    features: Feature = "x-pre"
    of_partner: float = 0.25
    stages: int | None = None
    proportional: float | bool = 1.0
    keeps_length: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"stages must be at least 1, or None, got {self.stages}")
        for name in ("of_partner", "proportional"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    def dials(self, geometry: Geometry) -> list[Dial]:
        """Return dials of a few stages, spaced evenly up to 10/12 of the depth, that fold the same
        share of their tokens. Low budgets start earlier: see `FORMS`."""
        return [
            partial(self._staged, _blocks(geometry.depth, first, self.stages or number), most,
                    geometry.patches)
            for first, number, most in FORMS
        ]  # fmt: skip

    def _staged(self, blocks: list[int], most: float, patches: int, cut: float) -> Schedule:
        left, exact, stages = patches, float(patches), []
        for block in blocks:
            exact *= 1 - cut * most
            count = min(left - round(exact), left // 2)
            stages.append(Stage(block, similar=count))
            left -= count
        return Schedule(tuple(stage for stage in stages if stage.similar), self)

    def kept(self, stage: Stage, patches: int) -> int:
        return patches - stage.similar

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if self.importance == "cls" and not geometry.cls:
            raise ValueError('importance="cls" needs a CLS token, and this model has none')
        if stage.keep < 1:
            raise ValueError("Fold merges `similar` tokens and drops none: leave keep at 1")
        if stage.similar > patches // 2:
            raise ValueError(
                f"the stage at block {stage.block} can fold at most half of its {patches} patch "
                f"tokens, got {stage.similar}"
            )

    def bind(self, model: nn.Module, blocks: Collection[int], geometry: Geometry) -> Fold:
        return replace(self, importance=self._importance_for(geometry))

    def _importance_for(self, geometry: Geometry) -> Importance:
        if self.importance != "auto":
            return self.importance
        return "both" if geometry.patches <= ALL_ROWS else "rows"

    def wants_columns(self, stage: Stage) -> bool:
        return self.importance in ("auto", "both", "received")

    def decides_after(self) -> Part:
        return "projection" if self.features == "x" else "attention"

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        weight = self._weight(seen)
        folding = seen.scorer.fold(
            self._features(seen), stage.similar, weight, self.of_partner, prefix=seen.prefix
        )
        return Reduction(
            folding.keep, weight, similar=folding.gone, partner=folding.partner, into=folding.into,
            keeps_length=self.keeps_length,
        )  # fmt: skip

    def _weight(self, seen: Seen) -> Float[Tensor, "batch patches"]:
        """Return the importance of each patch token: 1 on average, or 2 if it is a sum."""
        prefix, cls = seen.geometry.prefix, seen.geometry.cls
        importance = self._importance_for(seen.geometry)
        if importance == "both" and cls:
            assert seen.columns is not None
            parts = cls_and_received(seen.columns)
        elif importance == "rows":
            rows = seen.scorer.sampled_attention(seen.heads, ROWS, prefix, cls)
            parts = torch.stack(rows, dim=1)
        elif importance == "pooled":
            parts = torch.stack(pooled_attention(seen.heads, POOLED, prefix, cls), dim=1)
        elif importance == "cls":
            parts = cls_attention(seen.rows).unsqueeze(1)
        else:
            assert seen.columns is not None
            parts = average_attention(seen.columns).unsqueeze(1)
        patches = parts[..., prefix:]
        # On a CPU, a sum takes half the time of a mean.
        mean = patches.sum(dim=-1, keepdim=True) / patches.shape[-1]
        return (patches / mean).sum(dim=1)

    def _features(self, seen: Seen) -> Float[Tensor, "batch tokens width"]:
        if self.features == "key":
            return seen.feature("key")
        return seen.x_pre if self.features == "x-pre" else seen.tokens.x

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        matching = (patches // 2) * (patches - patches // 2) * geometry.dim
        importance = self._importance_for(geometry)
        if importance in ("both", "received"):
            return geometry.votes(stage.block, patches) + matching
        sampled = len(sampled_rows(patches, ROWS, prefix=0)) if importance == "rows" else 0
        pooled = min(POOLED, patches) if importance == "pooled" else 0
        pooling = pooled * patches * geometry.blocks[stage.block - 1].width
        rows = int(geometry.cls) + sampled + pooled
        return rows * geometry.row(stage.block, patches) + pooling + matching


def _blocks(depth: int, first: int, number: int) -> list[int]:
    """Return blocks spaced evenly from `first` to `LAST` twelfths of the depth.

    >>> _blocks(12, first=5, number=5), _blocks(24, first=4, number=5)
    ([5, 6, 8, 9, 10], [8, 11, 14, 17, 20])
    """
    if depth < 2:  # the last block has no stage
        return []
    begin, end = max(1, round(depth * first / 12)), max(1, min(round(depth * LAST / 12), depth - 1))
    begin = min(begin, end)
    gaps = min(number, end - begin + 1) - 1
    return [round(begin + (end - begin) * step / max(gaps, 1)) for step in range(gaps + 1)]
