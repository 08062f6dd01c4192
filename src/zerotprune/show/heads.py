"""Record what each head votes for at a stage, its variance, and whether VHF counts it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from ..method import Seen
from ..methods import Method, ZeroTPrune
from ..schedule import Stage
from ..scoring.graph import Graph, HeadRule, Over, head_variance, heads_in_range
from ..scoring.indexing import concat
from ..scoring.scorer import Scorer
from ..shapes import Bool, Float, Int
from ..tokens import Reduction


@dataclass(frozen=True)
class HeadsView:
    """The votes of one block's heads on one image."""

    block: int
    vhf: tuple[float, float] | None  # the range of variances that count; None without a filter
    importance: Float[Tensor, "heads rows cols"]  # 1 is the mean; NaN where there was no patch
    variance: tuple[float, ...]
    used: tuple[bool, ...]

    @property
    def none_in_range(self) -> bool:
        """Is no head in the range? Then all of them count."""
        if self.vhf is None:
            return False
        low, high = self.vhf
        return not any(low <= variance <= high for variance in self.variance)


class _Vote(NamedTuple):
    """One vote on a batch of images."""

    final: bool  # the I-stage's, not I′
    source: Int[Tensor, "batch patches"]
    score: Float[Tensor, "batch heads patches"]  # scaled to mean 1, NaN for dead tokens
    variance: Float[Tensor, "batch heads"]
    used: Bool[Tensor, "batch heads"]


class _Recorder(Scorer):
    """Keep the scores of every head in the last vote."""

    def __init__(self) -> None:
        self.last: tuple[Tensor, Tensor, Tensor] | None = None

    def importance(
        self,
        graph: Graph,
        scores: Float[Tensor, "batch heads tokens"],
        prefix: int,
        rule: HeadRule = "eir",
        variances: tuple[float, float] | None = None,
        over: Over = "patches",
    ) -> Float[Tensor, "batch patches"]:
        variance = head_variance(scores, prefix if over == "patches" else 0, graph.alive)
        used = torch.ones_like(variance, dtype=torch.bool)
        if variances is not None:
            used = heads_in_range(variance, *variances)
        patches = scores[..., prefix:]
        if graph.alive is not None:
            patches = patches.masked_fill(graph.alive[:, None, prefix:] == 0, torch.nan)
        relative = patches / patches.nanmean(dim=-1, keepdim=True)
        self.last = (relative, variance, used)
        return super().importance(graph, scores, prefix, rule, variances, over)


@dataclass(frozen=True)
class RecordingZeroTPrune(ZeroTPrune):
    """Zero-TPrune, with a record of the votes of its heads."""

    votes: dict[int, list[_Vote]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, method: Method) -> RecordingZeroTPrune:
        check_heads(method)
        return cls(**{option.name: getattr(method, option.name) for option in fields(ZeroTPrune)})

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        recorder = _Recorder()
        reduction = super().reduce(seen._replace(scorer=recorder), stage)
        if recorder.last is not None:
            vote = _Vote(reduction.importance is not None, seen.tokens.source, *recorder.last)
            self.votes.setdefault(stage.block, []).append(vote)
        return reduction

    def views(self, index: int, grid: tuple[int, int]) -> list[HeadsView]:
        """Return the heads of every stage that voted, for image `index` of the batch."""
        views = []
        for block, votes in sorted(self.votes.items()):
            vote = concat(votes)  # a CPU scores a few images at a time
            source, score = vote.source[index].cpu(), vote.score[index].float().cpu()
            flat = torch.full((len(score), grid[0] * grid[1]), torch.nan)
            flat.scatter_(1, source.expand(len(score), -1), score)
            vhf, maps = self.vhf if vote.final else None, flat.unflatten(1, grid)
            variance, used = vote.variance[index].tolist(), vote.used[index].tolist()
            views.append(HeadsView(block, vhf, maps, tuple(variance), tuple(used)))
        return views


def check_heads(method: Method) -> None:
    """Raise ValueError for a method that does not score head by head."""
    if not isinstance(method, ZeroTPrune):
        raise ValueError(
            f"{type(method).__name__} has no scores for each head: --heads needs Zero-TPrune"
        )
