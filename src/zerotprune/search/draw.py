"""What one trial chooses, drawn by Optuna's sampler and held until the trial is finished.

An Optuna trial writes every single choice to the storage: thirty transactions for a schedule, for
which workers wait on each other. Until a trial is finished nobody asks what it has chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial


class Draw:
    """The choices of a trial so far; a `Chooser`."""

    def __init__(self, study: Study, sampler: BaseSampler, trial: FrozenTrial) -> None:
        self._study, self._sampler, self._trial = study, sampler, trial
        study._thread_local.cached_all_trials = None  # learn from what is finished by now
        sampler.before_trial(study, trial)
        space = sampler.infer_relative_search_space(study, trial)
        self._together = sampler.sample_relative(study, trial, space)
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return int(self._drawn(name, IntDistribution(low, high)))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return float(self._drawn(name, FloatDistribution(low, high)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._drawn(name, CategoricalDistribution(choices))

    def _drawn(self, name: str, distribution: BaseDistribution) -> Any:
        if name in self._together:
            value = self._together[name]
        else:
            value = self._sampler.sample_independent(self._study, self._trial, name, distribution)
        self.params[name], self.distributions[name] = value, distribution
        return value
