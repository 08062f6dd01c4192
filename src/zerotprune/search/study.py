"""The trials of a search: drawn and run in memory, written when they are finished.

Several workers, on several machines, may work on one study, and any of them may be killed at any
moment. A trial reaches the storage in one transaction, finished: it is there or it is not, and
nobody has to know who runs what. What makes the total exact:

- Trials are numbered in the order in which they were finished, and the first `trials` of them
  count. What other workers finish after that is ignored by everybody who reads.
- Equal parameters count once, should two commands that do not know of each other draw the same.

The parameters are part of one attribute of the trial. As parameters in Optuna's sense each of them
would take three statements to write, and workers would wait for one another most of the time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from ..budgets.surface import Surface
from ..schedule import Schedule
from .config import SearchConfig
from .objective import Outcome, rank, value
from .sampling import ATTRIBUTE, Draw, ParameterSampler, stored
from .space import Params, propose, space_of, start_of
from .storage import persistently


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial, on the first half of the images."""

    number: int
    schedule: Schedule
    gmacs: float
    top1: float | None
    mean_kl: float


class TrialLog:
    """The trials of a study that count: the first so many that are finished, none of them twice."""

    def __init__(self, study: Study, config: SearchConfig) -> None:
        self._study, self._config, self._looked_at = study, config, 0
        self._drawn: set[str] = set()
        self.trials: list[FrozenTrial] = []

    def refresh(self) -> TrialLog:
        complete = persistently(
            lambda: self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        )
        for trial in complete[self._looked_at :]:
            key = _key(stored(trial)["params"])
            if key not in self._drawn and not self.full:
                self._drawn.add(key)
                self.trials.append(trial)
        self._looked_at = len(complete)
        return self

    @property
    def full(self) -> bool:
        return len(self.trials) >= self._config.trials

    def holds(self, params: Params) -> bool:
        return _key(params) in self._drawn

    @property
    def best(self) -> str | None:
        """So far, in words, where there is one measure of it."""
        if not self.trials or self._config.budget is None:
            return None
        values = [trial.values[0] for trial in self.trials]
        return f"{max(values):.2f} %" if self._config.measure == "top1" else f"KL {min(values):.4f}"


def read_trials(study: Study, config: SearchConfig) -> list[FinishedTrial]:
    """Those that count."""
    trials = []
    for trial in TrialLog(study, config).refresh().trials:
        result = stored(trial)["result"]
        trials.append(FinishedTrial(
            trial.number, Schedule.from_json(result["schedule"]), result["gmacs"], result["top1"],
            result["kl"],
        ))  # fmt: skip
    return trials


def best_first(trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    return sorted(trials, key=lambda trial: (*rank(trial), trial.number))


def work(
    study: Study,
    config: SearchConfig,
    surface: Surface,
    objective: Callable[[Schedule], Outcome],
    advance: Callable[[TrialLog], None] = lambda log: None,
    *,
    alone: bool = True,
    begins: bool = True,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run trials until enough are finished, by whomever, or the work is no longer wanted.

    A worker that is alone draws by the search's seed, the same trials every time; one among
    several puts its own name into every draw, and so does the lone one that meets another. The
    one that begins runs the method's own schedule before it draws, where the space has it.
    """
    name, log = uuid.uuid4().hex, TrialLog(study, config).refresh()
    sampler, earlier = ParameterSampler(config, space_of(surface, config.budget)), len(log.trials)
    start = start_of(surface, config.budget) if begins else None
    begun = [] if start is None else [Draw(start, {})]
    while wanted() and not log.full:
        alone = alone and all(stored(each)["worker"] == name for each in log.trials[earlier:])
        sampler.learn(log.trials)
        drawn = (sampler.draw(len(log.trials), "" if alone else name, again) for again in count())
        params, system_attrs = next(
            draw for draw in chain(begun, drawn) if not log.holds(draw.params)
        )
        schedule = propose(params, surface, config.budget)
        outcome, cost = objective(schedule), surface.price(schedule)
        result = {"schedule": schedule.to_json(), "gmacs": cost, "top1": outcome.top1,
                  "kl": outcome.mean_kl, "agreement": outcome.agreement}  # fmt: skip
        finished = optuna.trial.create_trial(
            values=[value(outcome), cost][: len(config.directions)],
            user_attrs={ATTRIBUTE: {"params": dict(params), "result": result, "worker": name}},
            system_attrs=dict(system_attrs),
        )
        # Should the storage be lost just after it has been written, it is written twice: see above.
        persistently(partial(study.add_trial, finished))
        advance(log.refresh())


def _key(params: Params) -> str:
    return json.dumps(params, sort_keys=True)
