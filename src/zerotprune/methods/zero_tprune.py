"""Zero-TPrune: the pruning layer I′ → S → I of the paper, and the variants of its ablations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..cost import Geometry
from ..dials import Dial, early_form, importance_form, paper_form
from ..method import Method, Part, Seen
from ..schedule import Stage
from ..scoring.graph import Graph, HeadRule, Over
from ..scoring.indexing import take
from ..scoring.similarity import AMONG, Matching, Metric
from ..scoring.similarity import Partition as Groups
from ..shapes import Float
from ..tokens import Reduction
from .top_k import Draw, Score, random_scores, rank

Start = Literal["auto", "cls", "uniform"]
Order = Literal["i-s-i", "i-s"]
Feature = Literal["key", "query", "value", "x-pre", "x-mid", "x"]
Partition = Groups | Literal["random"]
Ranking = Literal["wpr"] | Score
#: the most rounds of voting by `epsilon`
MOST = 100
ScheduleForm = Literal["early", "paper", "importance"]


@dataclass(frozen=True)
class ZeroTPrune(Method):
    """Vote on the attention graph; prune similar tokens, then unimportant ones.

    The defaults are the published method. Each option is a row of its ablations, or one of two
    readings of what the paper leaves open: these are `rescale`, `vhf_over`, `pre_vhf`, and some
    values of `features`, `partition` and `draw`.

    Args:
        start: First scores of the I-stage: "uniform" (the paper's Zero-TPrune-uni), "cls"
            (Zero-TPrune), or "auto", which is "cls" if the model has a CLS token.
        pre_start: The same for the I′-stage.
        cls_weight: The first score of CLS, relative to all other tokens; None means √N.
        heads: How the scores of heads become one importance: "eir", "mean" or "max".
        vhf: The range of variances in which a head counts; None counts all heads.
        order: "i-s-i" prunes similar tokens first, then unimportant ones; "i-s" the reverse.
        features: What the S-stage compares: "key", "query" or "value" of the attention, the input
            of the block ("x-pre"), the residual stream before the MLP ("x-mid"), or the output
            ("x"). The paper's "intermediate" may mean "x-mid" or "x-pre".
        partition: How the S-stage groups tokens, see `similarity.split`.
        metric: How it compares them.
        ranking: "wpr", or another score instead of the votes of the I-stage.
        seed: For random ranking and partition.
        draw: For these: one draw "shared" by all images, or one for each "image".
        epsilon: Vote until no head's scores change by more than this (Alg. 1), instead of a fixed
            number of rounds. For one image at a time, and not if compiled or exported.
        form: Of the schedule for a budget: "early" has two S-stages early and two I-stages late,
            "paper" has stages of both, and "importance", for training, has I-stages alone.
        rescale: Scale the rows of the graph back to sum 1 after the S-stage.
        vhf_over: Take the variance of a head over the "patches" or over "all" tokens.
        pre_vhf: Filter the heads of the I′-stage too.

    >>> ZeroTPrune(start="uniform", vhf=None).heads  # the paper's Zero-TPrune-uni without VHF
    'eir'
    """

    name = "zero-tprune"
    variants: ClassVar = {
        "zero-tprune-uni": {"start": "uniform"},
        "zero-tprune-paper": {"form": "paper"},
    }
    start: Start = "auto"
    pre_start: Start = "uniform"
    cls_weight: float | None = None
    heads: HeadRule = "eir"
    vhf: tuple[float, float] | None = (0.01, 0.7)
    order: Order = "i-s-i"
    features: Feature = "key"
    partition: Partition = "sequential-u"
    metric: Metric = "cosine"
    ranking: Ranking = "wpr"
    seed: int = 0
    draw: Draw = "shared"
    epsilon: float | None = None
    form: ScheduleForm = "early"
    rescale: bool = True
    vhf_over: Over = "patches"
    pre_vhf: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vhf is not None and not 0 <= self.vhf[0] <= self.vhf[1]:
            raise ValueError(f"vhf must be two variances (low, high) or None, got {self.vhf!r}")
        for name in ("cls_weight", "epsilon"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be a positive number or None, got {value!r}")

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        if self.form == "paper":
            return paper_form(geometry, self)
        if self.form == "importance":
            return importance_form(geometry, self)
        return early_form(geometry, self, i_first=self.order == "i-s")

    def kept(self, stage: Stage, patches: int) -> int:
        if self.order == "i-s":
            return stage.share(patches) - stage.similar
        return stage.kept(patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls and "cls" in (self.start, self.pre_start, self.ranking):
            raise ValueError("start or ranking by CLS needs a CLS token, and this model has none")
        matched = stage.share(patches) if self.order == "i-s" else patches
        most = matched - 1 if self.partition in AMONG else matched - self._partners(matched)
        if stage.similar > most:
            raise ValueError(
                f"the stage at block {stage.block} can prune at most {most} similar tokens of the "
                f"{matched} patch tokens there, got {stage.similar}"
            )

    def wants_graph(self, stage: Stage) -> bool:
        return stage.similar > 0 or self.ranking in ("wpr", "average")

    def wants_history(self) -> bool:
        return self.ranking == "accumulated"

    def _partners(self, matched: int) -> int:
        """Return the size of group B."""
        return matched - matched // 2 if self.partition == "alternate-top" else matched // 2

    def decides_after(self) -> Part:
        return _DECIDES_AFTER.get(self.features, "attention")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        return self._i_s(seen, stage) if self.order == "i-s" else self._i_s_i(seen, stage)

    def _i_s_i(self, seen: Seen, stage: Stage) -> Reduction:
        matching = pre = None
        graph = seen.graph
        if stage.similar:
            pre = self._pre_importance(seen)
            sorting = self._sorting(seen, stage, pre)
            matching = self._match(seen, stage, self._features(seen), sorting)
        dropped, partner = (matching.dropped, matching.partner) if matching else (None, None)
        if stage.keep == 1:
            assert matching is not None
            return Reduction(matching.left, None, pre, dropped, partner)
        if matching is not None and graph is not None:
            graph = graph.without(matching.dropped + seen.prefix, self.rescale)
        dead = 0 if matching is None else stage.similar
        importance = self.importance(seen, stage, graph, dead)
        count = self.kept(stage, seen.patches)
        if matching is None:
            keep = seen.scorer.top(importance, count)
        else:
            best = seen.scorer.top(importance.gather(1, matching.left), count)
            keep = matching.left.gather(1, best)
        return Reduction(keep, importance, pre, dropped, partner)

    def _i_s(self, seen: Seen, stage: Stage) -> Reduction:
        importance = self.importance(seen, stage, seen.graph)
        keep = seen.scorer.top(importance, stage.share(seen.patches))
        if not stage.similar:
            return Reduction(keep, importance)
        features = take(self._features(seen), keep)
        sorting = self._sorting(seen, stage, importance).gather(1, keep)
        matching = self._match(seen, stage, features, sorting)
        dropped, partner = keep.gather(1, matching.dropped), keep.gather(1, matching.partner)
        return Reduction(keep.gather(1, matching.left), importance, None, dropped, partner)

    def _pre_importance(self, seen: Seen) -> Float[Tensor, "batch patches"]:
        """Vote once and combine heads by EIR, only to sort the tokens for S (the I′-stage)."""
        assert seen.graph is not None
        start = seen.graph.start(self._cls_weight(self.pre_start, seen))
        scores = seen.graph.vote(start, rounds=1)
        variances = self.vhf if self.pre_vhf else None
        return seen.scorer.importance(
            seen.graph, scores, seen.prefix, "eir", variances, self.vhf_over
        )

    def importance(
        self, seen: Seen, stage: Stage, graph: Graph | None, dead: int = 0
    ) -> Float[Tensor, "batch patches"]:
        """Vote on the graph of the living tokens, filter the heads, and combine them (the
        I-stage)."""
        if self.ranking != "wpr":
            return rank(seen, self.ranking, stage.block, self.seed, graph, self.draw)
        assert graph is not None
        start = graph.start(self._cls_weight(self.start, seen, dead))
        if self.epsilon is None:
            scores = graph.vote(start, stage.votes(seen.geometry.depth))
        else:
            scores, _ = vote_until(graph, start, self.epsilon)
        return seen.scorer.importance(
            graph, scores, seen.prefix, self.heads, self.vhf, self.vhf_over
        )

    def _cls_weight(self, start: Start, seen: Seen, dead: int = 0) -> float | None:
        if start == "uniform" or not seen.geometry.cls:
            return None
        if self.cls_weight is not None:
            return self.cls_weight
        return math.sqrt(seen.prefix + seen.patches - dead)

    def _features(self, seen: Seen) -> Float[Tensor, "batch patches width"]:
        if self.features == "x-pre":
            tokens = seen.x_pre
        elif self.features == "x" or self.features == "x-mid":
            tokens = seen.tokens.x
        else:
            tokens = seen.feature(self.features)
        return tokens[:, seen.prefix :]

    def _sorting(self, seen: Seen, stage: Stage, importance: Tensor) -> Tensor:
        """Return what the S-stage sorts the tokens by before it groups them."""
        if self.partition != "random":
            return importance
        return random_scores(seen, -self.seed * 4096 - stage.block, self.draw)

    def _match(self, seen: Seen, stage: Stage, features: Tensor, sorting: Tensor) -> Matching:
        groups: Groups = "sequential-u" if self.partition == "random" else self.partition
        return seen.scorer.match(features, sorting, stage.similar, groups, self.metric)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Count votes and matching."""
        vote_once = geometry.votes(stage.block, patches)
        depth = geometry.depth
        total = 0
        if stage.similar:
            matched = stage.share(patches) if self.order == "i-s" else patches
            half = matched // 2
            pairs = matched**2 if self.partition in AMONG else half * (matched - half)
            residual = self.features.startswith("x")
            total += pairs * (geometry.dim if residual else geometry.blocks[stage.block - 1].width)
            if self.order == "i-s-i":
                total += vote_once
        if stage.keep < 1 or self.order == "i-s":
            # Rescaling the rows of the graph to the survivors costs as much as a round.
            rescales = int(bool(stage.similar) and self.order == "i-s-i" and self.rescale)
            if self.ranking == "wpr":
                total += vote_once * (stage.votes(depth) + rescales)
            elif self.ranking == "average":
                total += vote_once * (1 + rescales)
            elif self.ranking == "cls" and not stage.similar:
                total += geometry.row(stage.block, patches)
        return total


def vote_until(
    graph: Graph, scores: Float[Tensor, "batch heads tokens"], epsilon: float
) -> tuple[Float[Tensor, "batch heads tokens"], int]:
    """Vote until a round changes no head's scores by more than `epsilon`, at most `MOST` times
    (Alg. 1); return the scores and the rounds. The change is summed over the tokens, whose scores
    sum to 1."""
    if torch.compiler.is_compiling():
        raise ValueError(
            "with epsilon the rounds depend on the image, but a compiled or exported model has a "
            "fixed number: leave epsilon out"
        )
    if scores.shape[0] != 1:
        raise ValueError(
            "with epsilon the rounds depend on the image: give one image at a time, got "
            f"{scores.shape[0]}"
        )
    for rounds in range(1, MOST + 1):
        before, scores = scores, graph.vote(scores, 1)
        if (scores - before).abs().sum(dim=-1).max() <= epsilon:
            return scores, rounds
    return scores, MOST


#: the part of the block after which the features are there, if not attention
_DECIDES_AFTER: dict[str, Part] = {"x-mid": "projection", "x": "mlp"}
