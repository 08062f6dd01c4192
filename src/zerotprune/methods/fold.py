"""Fold, our own: merge what matters little into what is like it, late and by a formula."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
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

    Every second patch token, in the order in which they travel, meets its most similar one of the
    others. To fold it costs its importance times (1 − cosine), and the cheapest are folded: a mean
    weighted by the patches in each, as in ToMe (Bolya et al., ICLR 2023), whose proportional
    attention it takes too. That importance should count in the matching was found before us, in
    other forms, by ToMeCIS, MCTF (Lee et al., CVPR 2024) and AdaMerge.

    importance: the attention that CLS pays to a token ("cls"), the attention that it receives from
                all ("received"), or their sum, each scaled to mean 1 ("both"); without a CLS token
                "both" is "received"
    features:   what is compared: the block's input ("x-pre"), the tokens after its attention ("x"),
                or the keys ("key")
    stages:     in how many blocks a budget's schedule acts, at most; None means in all from its
                first on. Fewer are faster where launches count, and a little less accurate.

    >>> Fold().importance
    'both'
    """

    name = "fold"
    acts = "middle"
    merges = True
    searchable = "counts"
    importance: Importance = "both"
    features: Feature = "x-pre"
    stages: int | None = None
    proportional: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("importance", Importance), ("features", Feature)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(choices))}, "
                    f"got {getattr(self, name)!r}"
                )

    def dials(self, geometry: Geometry) -> list[Dial]:
        """Counts in proportion to (i − s + 1)^p from block s on, none in the last."""

        def turn(cut: float) -> Schedule:
            depth = geometry.depth
            first, power = max(1, round(depth / 3)), -0.5
            shares = [(block - first + 1) ** power for block in range(first, depth)]
            scale = cut * (geometry.patches - 1) / sum(shares)
            sums = [0]
            for at in range(len(shares)):
                sums.append(round(scale * sum(shares[: at + 1])))
            stages, left = [], geometry.patches
            for block, (before, after) in enumerate(pairwise(sums), start=first):
                count = min(after - before, left // 2)
                stages.append(Stage(block, similar=count))
                left -= count
            return Schedule(tuple(stages), self)

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

    def wants_graph(self, stage: Stage) -> bool:
        return self.importance != "cls"

    def decides_after(self) -> Part:
        return "projection" if self.features == "x" else "attention"

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        weight = self._weight(seen)
        found = seen.scorer.fold(self._features(seen)[:, seen.prefix :], stage.similar, weight)
        return Reduction(
            found.keep, weight, similar=found.gone, partner=found.partner, into=found.into
        )

    def _weight(self, seen: Seen) -> Float[Tensor, "batch patches"]:
        """The importance of each patch token; 1 on average, or 2 where it is a sum."""
        parts = []
        if self.importance != "received" and seen.geometry.cls:
            parts.append(cls_attention(seen.rows))
        if self.importance != "cls":
            assert seen.graph is not None
            parts.append(average_attention(seen.graph))
        patches = [part[:, seen.prefix :] for part in parts]
        return torch.stack([part / part.mean(dim=-1, keepdim=True) for part in patches]).sum(dim=0)

    def _features(self, seen: Seen) -> Float[Tensor, "batch tokens width"]:
        if self.features == "key":
            return seen.feature("key")
        return seen.x_pre if self.features == "x-pre" else seen.tokens.x

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        pairs = (patches // 2) * (patches - patches // 2)
        received = geometry.votes(stage.block, patches) if self.importance != "cls" else 0
        return received + pairs * geometry.dim
