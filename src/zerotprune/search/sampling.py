"""Parameters of new trials, drawn in memory from what is finished."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from .config import SearchConfig
from .space import Params, Space

#: of a stored trial: its parameters, what came of them, and who ran it
ATTRIBUTE = "trial"


def stored(trial: FrozenTrial) -> dict[str, Any]:
    attribute: dict[str, Any] = trial.user_attrs[ATTRIBUTE]
    return attribute


class Draw(NamedTuple):
    params: Params
    system_attrs: Mapping[str, Any]  # what the sampler has to find again in the finished trial


class ParameterSampler:
    """One of Optuna's samplers on a study of its own: the shared one sees finished trials alone.

    Every draw has a seed of its own, made of the search's seed and `words`. Who puts the number of
    finished trials into them draws nothing twice, also after a resume.
    """

    def __init__(self, config: SearchConfig, space: Space) -> None:
        self._config, self._space = config, dict(space)
        self._memory = optuna.create_study(directions=config.directions)
        self._learned = 0

    def learn(self, finished: Sequence[FrozenTrial]) -> None:
        """From those that are new in this list, which only ever grows."""
        if self._config.sampler != "random":
            for trial in finished[self._learned :]:
                self._memory.add_trial(optuna.trial.create_trial(
                    params=stored(trial)["params"], distributions=self._space,
                    values=trial.values, system_attrs=trial.system_attrs,
                ))  # fmt: skip
        self._learned = len(finished)

    def draw(self, *words: object) -> Draw:
        text = " ".join(map(str, (self._config.seed, *words)))
        self._memory.sampler = self._seeded(random.Random(text).randrange(2**32))
        trial = self._memory.ask(self._space)
        drawn = self._memory.get_trials(deepcopy=False)[-1]
        kept = dict(drawn.system_attrs) if self._config.sampler == "nsga2" else {}
        self._memory.tell(trial, state=TrialState.FAIL)  # it comes back when it is finished
        return Draw(trial.params, kept)

    def _seeded(self, seed: int) -> BaseSampler:
        total = self._config.trials
        if self._config.sampler == "random":
            return RandomSampler(seed=seed)
        if self._config.sampler == "tpe":
            return TPESampler(seed=seed, n_startup_trials=max(10, total // 10))
        return NSGAIISampler(seed=seed, population_size=min(50, max(4, total // 8)))
