"""What a search is to do: the same for all its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optuna.study import StudyDirection

SamplerName = Literal["random", "tpe", "nsga2"]
Measure = Literal["top1", "kl"]


@dataclass(frozen=True)
class SearchConfig:
    trials: int
    budget: float | None  # in GMACs; None: the whole front
    measure: Measure
    sampler: SamplerName = "random"
    seed: int = 0

    @property
    def directions(self) -> list[StudyDirection]:
        return directions(self.measure, front=self.budget is None)


def directions(measure: Measure, front: bool) -> list[StudyDirection]:
    best = StudyDirection.MAXIMIZE if measure == "top1" else StudyDirection.MINIMIZE
    return [best, StudyDirection.MINIMIZE] if front else [best]
