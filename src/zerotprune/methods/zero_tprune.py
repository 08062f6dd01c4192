"""Zero-TPrune: the pruning layer I′ → S → I of the paper, and every variant its ablations name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from ..batching import take
from ..cost import Geometry
from ..knobs import Dial, early_form, importance_form, paper_form
from ..method import Method, Part, Seen
from ..schedule import Stage
from ..scoring.graph import Graph, HeadRule, Over
from ..scoring.similarity import AMONG, Matching, Metric
from ..scoring.similarity import Partition as Groups
from ..shapes import Float
from ..tokens import Reduction
from .top_k import Draw, Score, drawn, rank

Start = Literal["auto", "cls", "uniform"]
Order = Literal["i-s-i", "i-s"]
Feature = Literal["key", "query", "value", "x-pre", "x-mid", "x"]
Partition = Groups | Literal["random"]
Ranking = Literal["wpr"] | Score
#: rounds after which voting by `epsilon` ends in any case
MOST = 100
ScheduleForm = Literal["early", "paper", "importance"]


@dataclass(frozen=True)
class ZeroTPrune(Method):
    """The published method by default; each option is one row of its ablations, or a reading of
    what the paper leaves open.

    start:      first scores of the I-stage: "uniform" (the paper's Zero-TPrune-uni), "cls"
                (Zero-TPrune), or "auto": "cls" where the model has a CLS token
    pre_start:  the same for the I′-stage
    cls_weight: what CLS starts with, against 1 for each other token; None means √N
    heads:      how the heads' scores become one importance: "eir", "mean" or "max"
    vhf:        variances between which a head counts, or None to count them all
    order:      "i-s-i" prunes similar tokens first, then unimportant ones; "i-s" the reverse
    features:   what the S-stage compares: a vector of the block's attention, its input ("x-pre"),
                the stream between attention and MLP ("x-mid"), or its output ("x")
    partition, metric: how the S-stage groups and compares tokens
    ranking:    "wpr", or another score in the I-stage's place
    seed:       for the random ranking and partition
    draw:       for these: one draw "shared" by all images, or one for each "image"
    epsilon:    stop voting when no head's scores change by more than this (Alg. 1), and not after
                the stage's rounds; for one image at a time, and not in a compiled or exported model
    form:       of a budget's schedule: "early", two S-stages in the first blocks and two I-stages
                after them; that of the "paper", stages of both; or "importance", I-stages alone,
                which is how it is trained

    Readings: where the paper can be read in two ways, the default first.

    rescale:    are the rows of the graph scaled back to sum 1 once S has taken tokens out?
    vhf_over:   is a head's variance taken over the "patches", or over "all" tokens?
    pre_vhf:    does VHF filter the heads of the I′-stage too?
    features:   the paper's "intermediate" vectors are "x-mid", or "x-pre"
    partition:  with no partition both tokens of a pair may go ("none-both"), or the less important
                alone ("none"); "alternate" and "alternate-top" differ in where an odd token goes
    draw:       "shared", or "image"

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
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        if self.vhf is not None and not (len(self.vhf) == 2 and 0 <= self.vhf[0] <= self.vhf[1]):
            raise ValueError(f"vhf must be two variances (low, high) or None, got {self.vhf!r}")
        if self.cls_weight is not None and not 0 < self.cls_weight < math.inf:
            raise ValueError(f"cls_weight must be a positive number, got {self.cls_weight!r}")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a positive number or None, got {self.epsilon!r}")

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
            raise ValueError("this model has no CLS token to start from or to rank by")
        matched = stage.share(patches) if self.order == "i-s" else patches
        most = matched - 1 if self.partition in AMONG else matched - self._partners(matched)
        if stage.similar > most:
            raise ValueError(
                f"the stage at block {stage.block} prunes {stage.similar} similar tokens, "
                f"but its partition of {matched} patch tokens has only {most} to prune"
            )

    def wants_graph(self, stage: Stage) -> bool:
        return stage.similar > 0 or self.ranking in ("wpr", "average")

    def wants_history(self) -> bool:
        return self.ranking == "accumulated"

    def _partners(self, matched: int) -> int:
        """How many tokens are in group B."""
        return matched - matched // 2 if self.partition == "alternate-top" else matched // 2

    def decides_after(self) -> Part:
        return _RIPE.get(self.features, "attention")

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        return self._i_s(seen, stage) if self.order == "i-s" else self._i_s_i(seen, stage)

    def _i_s_i(self, seen: Seen, stage: Stage) -> Reduction:
        found = pre = None
        graph = seen.graph
        if stage.similar:
            pre = self._pre_importance(seen)
            found = self._match(seen, stage, self._features(seen), self._sorting(seen, stage, pre))
        dropped, partner = (found.dropped, found.partner) if found else (None, None)
        if stage.keep == 1:
            assert found is not None
            return Reduction(found.left, None, pre, dropped, partner)
        if found is not None and graph is not None:
            graph = graph.without(found.dropped + seen.prefix, self.rescale)
        dead = 0 if found is None else stage.similar
        importance = self.importance(seen, stage, graph, dead)
        count = self.kept(stage, seen.patches)
        if found is None:
            keep = seen.scorer.top(importance, count)
        else:
            best = seen.scorer.top(importance.gather(1, found.left), count)
            keep = found.left.gather(1, best)
        return Reduction(keep, importance, pre, dropped, partner)

    def _i_s(self, seen: Seen, stage: Stage) -> Reduction:
        importance = self.importance(seen, stage, seen.graph)
        keep = seen.scorer.top(importance, stage.share(seen.patches))
        if not stage.similar:
            return Reduction(keep, importance)
        features = take(self._features(seen), keep)
        sorting = self._sorting(seen, stage, importance).gather(1, keep)
        found = self._match(seen, stage, features, sorting)
        dropped, partner = keep.gather(1, found.dropped), keep.gather(1, found.partner)
        return Reduction(keep.gather(1, found.left), importance, None, dropped, partner)

    def _pre_importance(self, seen: Seen) -> Float[Tensor, "batch patches"]:
        """I′: one round and EIR; nothing is pruned by it, it only sorts the tokens for S."""
        assert seen.graph is not None
        start = seen.graph.start(self._cls_weight(self.pre_start, seen))
        score = seen.graph.vote(start, rounds=1)
        variances = self.vhf if self.pre_vhf else None
        return seen.scorer.importance(
            seen.graph, score, seen.prefix, "eir", variances, self.vhf_over
        )

    def importance(
        self, seen: Seen, stage: Stage, graph: Graph | None, dead: int = 0
    ) -> Float[Tensor, "batch patches"]:
        """I: the chosen number of rounds on the living tokens, head filter, one score for all."""
        if self.ranking != "wpr":
            return rank(seen, self.ranking, stage.block, self.seed, graph, self.draw)
        assert graph is not None
        start = graph.start(self._cls_weight(self.start, seen, dead))
        if self.epsilon is None:
            score = graph.vote(start, stage.votes(seen.geometry.depth))
        else:
            score, _ = vote_until(graph, start, self.epsilon)
        return seen.scorer.importance(
            graph, score, seen.prefix, self.heads, self.vhf, self.vhf_over
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
        """What the S-stage sorts the tokens by before it parts them."""
        if self.partition != "random":
            return importance
        return drawn(seen, -self.seed * 4096 - stage.block, self.draw)

    def _match(self, seen: Seen, stage: Stage, features: Tensor, sorting: Tensor) -> Matching:
        groups: Groups = "sequential-u" if self.partition == "random" else self.partition
        return seen.scorer.match(features, sorting, stage.similar, groups, self.metric)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Votes and matching."""
        vote_once = geometry.votes(stage.block, patches)
        depth = geometry.depth
        total = 0
        if stage.similar:
            matched = stage.share(patches) if self.order == "i-s" else patches
            half = matched // 2
            pairs = matched**2 if self.partition in AMONG else half * (matched - half)
            own = self.features.startswith("x")
            total += pairs * (geometry.dim if own else geometry.blocks[stage.block - 1].width)
            if self.order == "i-s-i":
                total += vote_once
        if stage.keep < 1 or self.order == "i-s":
            # On the survivors alone, the scale of the graph's rows costs as much as a round.
            restricted = int(bool(stage.similar) and self.order == "i-s-i" and self.rescale)
            if self.ranking == "wpr":
                total += vote_once * (stage.votes(depth) + restricted)
            elif self.ranking == "average":
                total += vote_once * (1 + restricted)
            elif self.ranking == "cls" and not stage.similar:
                total += geometry.row(stage.block, patches)
        return total


def vote_until(
    graph: Graph, score: Float[Tensor, "batch heads tokens"], epsilon: float
) -> tuple[Float[Tensor, "batch heads tokens"], int]:
    """Vote until a round changes no head's scores by more than `epsilon`, or `MOST` times (Alg. 1).
    The change is the sum over the tokens, whose scores sum to 1. Return the scores and the rounds.
    """
    if torch.compiler.is_compiling():
        raise ValueError(
            "epsilon lets an image decide how many rounds it takes, which a compiled or exported "
            "model cannot: leave epsilon out, and the rounds are the schedule's"
        )
    if score.shape[0] != 1:
        raise ValueError(
            "epsilon lets an image decide how many rounds it takes: give one image at a time, got "
            f"{score.shape[0]}"
        )
    for taken in range(1, MOST + 1):
        before, score = score, graph.vote(score, 1)
        if (score - before).abs().sum(dim=-1).max() <= epsilon:
            return score, taken
    return score, MOST


#: after which part of the block the residual stream is what is compared
_RIPE: dict[str, Part] = {"x-mid": "projection", "x": "mlp"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "start": get_args(Start),
    "pre_start": get_args(Start),
    "heads": get_args(HeadRule),
    "order": get_args(Order),
    "features": get_args(Feature),
    "partition": (*get_args(Groups), "random"),
    "metric": get_args(Metric),
    "ranking": ("wpr", *get_args(Score)),
    "draw": get_args(Draw),
    "form": get_args(ScheduleForm),
    "vhf_over": get_args(Over),
}
