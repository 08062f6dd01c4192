"""Run the trials of a search with Optuna until enough are finished.

Several workers, on several machines, may work on one study, and any of them may be killed at any
moment. What makes the total exact:

- The first `trials` that are finished count. What other workers finish after that does not.
- Equal parameters count once, should a sampler draw them twice.
- What a trial draws depends on its number alone, and on what is finished. A trial that lost its
  worker is retried with the same parameters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ..safety.interrupts import deferred
from ..schedule import Schedule
from .objective import Outcome, rank_key, value
from .storage import reporting_loss
from .surface import Params, Space, Surface

SamplerName = Literal["random", "tpe", "nsga2"]
Measure = Literal["top1", "kl"]
_RESULT = "result"


@dataclass(frozen=True)
class SearchConfig:
    """The settings that all workers of a search share."""

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


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial, measured on the first half of the images."""

    number: int
    schedule: Schedule
    gmacs: float
    top1: float | None
    mean_kl: float


def finished(study: Study, config: SearchConfig) -> list[FrozenTrial]:
    """Return the trials that count, in the order in which they were finished."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    distinct: dict[frozenset[Any], FrozenTrial] = {}
    for trial in sorted(complete, key=lambda trial: (str(trial.datetime_complete), trial.number)):
        distinct.setdefault(frozenset(trial.params.items()), trial)
    return list(distinct.values())[: config.trials]


def read_trials(study: Study, config: SearchConfig) -> list[FinishedTrial]:
    """Return the trials that count, with their schedules."""
    with reporting_loss(), deferred():
        trials = finished(study, config)
    return [
        FinishedTrial(
            trial.number,
            Schedule.from_json(trial.user_attrs[_RESULT]["schedule"]),
            trial.user_attrs[_RESULT]["gmacs"],
            trial.user_attrs[_RESULT]["top1"],
            trial.user_attrs[_RESULT]["kl"],
        )
        for trial in trials
    ]


def best_first(trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    return sorted(trials, key=lambda trial: (*rank_key(trial), trial.number))


def best_so_far(trials: Sequence[FrozenTrial], config: SearchConfig) -> str | None:
    """Return the best value in words; a front has none."""
    if not trials or config.budget is None:
        return None
    values = [trial.values[0] for trial in trials]
    return f"{max(values):.2f} %" if config.measure == "top1" else f"KL {min(values):.4f}"


def run_trials(
    study: Study,
    config: SearchConfig,
    surface: Surface[Any],
    objective: Callable[[Schedule], Outcome],
    advance: Callable[[list[FrozenTrial]], None] = lambda trials: None,
    *,
    proceed: Callable[[], bool] = lambda: True,
) -> None:
    """Run trials until enough are finished, by all workers together, or `proceed` returns False.

    Ctrl-C waits for the storage, and so never leaves a transaction open; it ends a trial at once.

    Args:
        study: From `open_study`.
        config: How many trials, and how they are drawn.
        surface: What is drawn.
        objective: Returns how well a schedule does.
        advance: Called after each trial with all that count so far.
        proceed: Called before each trial; False ends the run.
    """
    space = surface.space(config.budget)
    study.sampler = TrialSampler(config, space, surface.start(config.budget))
    current = -1  # the trial that is running, if any
    broken: Exception | None = None  # its error

    def measure(trial: Trial) -> list[float]:
        params = {name: _suggest(trial, name, choices) for name, choices in space.items()}
        schedule = surface.propose(params, config.budget)
        with ctrl_c.lifted():
            outcome = objective(schedule)
        cost = surface.price(schedule)
        trial.set_user_attr(_RESULT, {
            "schedule": schedule.to_json(), "gmacs": cost, "top1": outcome.top1,
            "kl": outcome.mean_kl, "agreement": outcome.agreement,
        })  # fmt: skip
        return [value(outcome), cost][: len(config.directions)]

    def evaluate(trial: Trial) -> list[float]:
        nonlocal current, broken
        current = trial.number
        try:
            return measure(trial)
        except UpdateFinishedTrialError:  # another worker was faster, see below
            raise
        except Exception as error:
            broken = error
            raise

    def go_on() -> bool:
        trials = finished(study, config)
        advance(trials)
        return len(trials) < config.trials and proceed()

    def stop_when_done(study: Study, trial: FrozenTrial) -> None:
        nonlocal current
        current = -1
        if not go_on():
            study.stop()

    with reporting_loss(), deferred() as ctrl_c:
        done = not go_on()
        while not done:
            try:
                study.optimize(evaluate, callbacks=[stop_when_done])
                done = True
            except Exception:
                # Others fail a trial without a heartbeat, say of a machine that was asleep, and
                # retry it. On SQLite, two workers may even get the same trial to retry. Then this
                # worker is late for that one, and goes on with the next.
                if broken is not None:  # Optuna's own error may hide it if it came late
                    raise broken from None
                trials = study.get_trials(deepcopy=False)
                if current < 0 or not trials[current].state.is_finished():
                    raise
                current, done = -1, not go_on()


def _suggest(trial: Trial, name: str, choices: BaseDistribution) -> Any:
    if isinstance(choices, CategoricalDistribution):
        return trial.suggest_categorical(name, choices.choices)
    if isinstance(choices, IntDistribution):
        return trial.suggest_int(name, choices.low, choices.high)
    return trial.suggest_float(name, choices.low, choices.high)  # type: ignore[attr-defined]


class TrialSampler(BaseSampler):
    """One of Optuna's samplers, seeded again for each trial: by its number or, for a retry, by the
    number of the trial that it repeats.

    The first trial is `start`, the method's own schedule, if the space has it.
    """

    def __init__(self, config: SearchConfig, space: Space, start: Params | None) -> None:
        self._config, self._space, self._start = config, dict(space), start
        self._starting, self._sampler = False, self._seeded(0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        # What a retry retries, as Optuna's callback notes it.
        number = trial.system_attrs.get("failed_trial", trial.number)
        earlier = study.get_trials(deepcopy=False)[:number]
        self._starting = self._start is not None and all(
            trial.state is TrialState.FAIL for trial in earlier
        )
        self._sampler = self._seeded(number)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        if self._starting:
            return self._space
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._starting:
            return dict(self._start or {})
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        taken = [other.params for other in complete]
        for attempt in count(1):
            params = self._sampler.sample_relative(study, trial, search_space)
            if params not in taken:  # NSGA-II's children may equal their parents
                break
            self._sampler = self._seeded(trial.number, attempt)
        return params

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)

    def _seeded(self, number: int, attempt: int = 0) -> BaseSampler:
        total = self._config.trials
        seed = random.Random(f"{self._config.seed} {number} {attempt}").randrange(2**32)
        if self._config.sampler == "random":
            return RandomSampler(seed=seed)
        if self._config.sampler == "tpe":
            return TPESampler(seed=seed, n_startup_trials=max(10, total // 10))
        return NSGAIISampler(seed=seed, population_size=min(50, max(4, total // 8)))
