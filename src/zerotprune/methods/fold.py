"""Fold, our own: merge what matters little into what is like it, late and by a formula."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..cost import Geometry
from ..knobs import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage
from ..scoring.attention import sampled_rows
from ..scoring.graph import average_attention, cls_attention
from ..shapes import Float
from ..tokens import Reduction

Importance = Literal["auto", "both", "rows", "cls", "received"]
Feature = Literal["x-pre", "x", "key"]

#: How a budget is met: the first block in twelfths of the depth, the number of stages, and the
#: largest share of its tokens that a stage folds. The first form that reaches the budget is taken.
#: Chosen by the divergence of two models from themselves: benchmarks.search.stages
FORMS = ((6, 5, 0.17), (5, 5, 0.23), (4, 5, 0.33), (3, 7, 0.33), (2, 7, 0.5))
LAST = 10  # twelfths of the depth at which the last stage stands

#: query rows that stand for all in the attention that a token receives
ROWS = 32
#: patch tokens up to which the attention of all rows is worth having: fused attention, which larger
#: models need, shows single rows only
ALL_ROWS = 256


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
                all ("received"), or their sum, each scaled to mean 1 ("both"); "rows" is "both"
                with 32 query tokens for all. "auto" is "both" for models of up to 256 patches,
                "rows" for larger ones. Without a CLS token only the second part counts.
    features:   what is compared: the block's input ("x-pre"), the tokens after its attention ("x"),
                or the keys ("key")
    of_partner: how much of its partner's importance is added to a token's own
    stages:     the number of stages of a budget's schedule; None means 5, and 7 at low budgets
    proportional: to which power of its patches later attention goes to a token

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
    proportional: float = 1.0

    def __post_init__(self) -> None:
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"stages must be at least 1, or None, got {self.stages}")
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
        """A few stages, spaced evenly from a first block to 10/12 of the depth, each of which folds
        the same share of its tokens. The more is to go, the earlier is the first: see `FORMS`."""
        return [
            partial(self._staged, _places(geometry.depth, first, self.stages or number), most,
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
            raise ValueError("this model has no CLS token to weigh by")
        if stage.keep < 1:
            raise ValueError("Fold merges `similar` tokens and drops none: leave keep at 1")
        if stage.similar > patches // 2:
            raise ValueError(
                f"the stage at block {stage.block} folds {stage.similar} tokens, more than half of "
                f"the {patches} patch tokens there"
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
        found = seen.scorer.fold(
            self._features(seen), stage.similar, weight, self.of_partner, prefix=seen.prefix
        )
        return Reduction(
            found.keep, weight, similar=found.gone, partner=found.partner, into=found.into
        )

    def _weight(self, seen: Seen) -> Float[Tensor, "batch patches"]:
        """The importance of each patch token; 1 on average, or 2 where it is a sum."""
        importance, cls = self._importance_for(seen.geometry), seen.geometry.cls
        if importance == "rows":
            parts = seen.scorer.sampled_attention(seen.heads, ROWS, seen.prefix, cls)
        else:
            parts = [cls_attention(seen.rows)] if cls and importance != "received" else []
            if importance != "cls":
                assert seen.columns is not None
                parts.append(average_attention(seen.columns))
        patches = torch.stack(parts)[:, :, seen.prefix :]
        return (patches / patches.mean(dim=-1, keepdim=True)).sum(dim=0)

    def _features(self, seen: Seen) -> Float[Tensor, "batch tokens width"]:
        if self.features == "key":
            return seen.feature("key")
        return seen.x_pre if self.features == "x-pre" else seen.tokens.x

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        pairs = (patches // 2) * (patches - patches // 2)
        importance = self._importance_for(geometry)
        if importance in ("both", "received"):
            attention = geometry.votes(stage.block, patches)
        else:
            sampled = len(sampled_rows(patches, ROWS, prefix=0))
            rows = int(geometry.cls) + (sampled if importance == "rows" else 0)
            attention = rows * geometry.row(stage.block, patches)
        return attention + pairs * geometry.dim


def _places(depth: int, first: int, number: int) -> list[int]:
    """Return blocks spaced evenly from `first` to `LAST` twelfths of the depth.

    >>> _places(12, first=5, number=5), _places(24, first=4, number=5)
    ([5, 6, 8, 9, 10], [8, 11, 14, 17, 20])
    """
    if depth < 2:  # the only block is the last, and has no stage
        return []
    begin, end = max(1, round(depth * first / 12)), max(1, min(round(depth * LAST / 12), depth - 1))
    begin = min(begin, end)
    gaps = min(number, end - begin + 1) - 1
    return [round(begin + (end - begin) * step / max(gaps, 1)) for step in range(gaps + 1)]
