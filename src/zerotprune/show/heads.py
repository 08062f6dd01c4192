"""What each head voted for at a stage, its variance, and whether the filter (VHF) let it count."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from ..batching import concat
from ..method import Seen
from ..methods import Method, ZeroTPrune
from ..schedule import Stage
from ..scoring.graph import Graph, HeadRule, Over, head_variance, heads_in_range
from ..scoring.scorer import Scorer
from ..shapes import Bool, Float, Int
from ..tokens import Reduction


@dataclass(frozen=True)
class HeadsView:
    """The heads of one block, as its stage saw one image."""

    block: int
    vhf: tuple[float, float] | None  # the variances between which a head counts, if they matter
    importance: Float[Tensor, "heads rows cols"]  # 1 is the mean; NaN where there was no patch
    variance: tuple[float, ...]
    used: tuple[bool, ...]

    @property
    def none_in_range(self) -> bool:
        """Then all heads count after all."""
        if self.vhf is None:
            return False
        low, high = self.vhf
        return not any(low <= each <= high for each in self.variance)


class _Note(NamedTuple):
    """One vote over some images."""

    final: bool  # the I-stage's, not I′
    source: Int[Tensor, "batch patches"]
    score: Float[Tensor, "batch heads patches"]  # scaled to mean 1, NaN for dead tokens
    variance: Float[Tensor, "batch heads"]
    used: Bool[Tensor, "batch heads"]


class _Recorder(Scorer):
    """Keeps the heads' scores of the last vote that was asked for."""

    def __init__(self) -> None:
        self.last: tuple[Tensor, Tensor, Tensor] | None = None

    def importance(
        self,
        graph: Graph,
        score: Float[Tensor, "batch heads tokens"],
        prefix: int,
        rule: HeadRule = "eir",
        variances: tuple[float, float] | None = None,
        over: Over = "patches",
    ) -> Float[Tensor, "batch patches"]:
        variance = head_variance(score, prefix if over == "patches" else 0, graph.alive)
        used = torch.ones_like(variance, dtype=torch.bool)
        if variances is not None:
            used = heads_in_range(variance, *variances)
        patches = score[..., prefix:]
        if graph.alive is not None:
            patches = patches.masked_fill(graph.alive[:, None, prefix:] == 0, torch.nan)
        relative = patches / patches.nanmean(dim=-1, keepdim=True)
        self.last = (relative, variance, used)
        return super().importance(graph, score, prefix, rule, variances, over)


@dataclass(frozen=True)
class RecordingZeroTPrune(ZeroTPrune):
    """Zero-TPrune that decides as ever, and keeps notes of its heads."""

    notes: dict[int, list[_Note]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, method: Method) -> RecordingZeroTPrune:
        check_heads(method)
        return cls(**{each.name: getattr(method, each.name) for each in fields(ZeroTPrune)})

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        recorder = _Recorder()
        reduction = super().reduce(seen._replace(scorer=recorder), stage)
        if recorder.last is not None:
            note = _Note(reduction.importance is not None, seen.tokens.source, *recorder.last)
            self.notes.setdefault(stage.block, []).append(note)
        return reduction

    def views(self, at: int, grid: tuple[int, int]) -> list[HeadsView]:
        """The heads of every stage that voted, for image `at` of the batch."""
        views = []
        for block, notes in sorted(self.notes.items()):
            note = concat(notes)  # a CPU scores a few images at a time
            source, score = note.source[at].cpu(), note.score[at].float().cpu()
            shown = torch.full((len(score), grid[0] * grid[1]), torch.nan)
            shown.scatter_(1, source.expand(len(score), -1), score)
            rule, maps = self.vhf if note.final else None, shown.unflatten(1, grid)
            variance, used = note.variance[at].tolist(), note.used[at].tolist()
            views.append(HeadsView(block, rule, maps, tuple(variance), tuple(used)))
        return views


def check_heads(method: Method) -> None:
    """Refuse a method whose heads have no scores of their own."""
    if not isinstance(method, ZeroTPrune):
        raise ValueError(
            f"{type(method).__name__} has no scores head by head to show: only Zero-TPrune votes so"
        )
