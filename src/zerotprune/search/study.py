"""The trials of a search: claimed, run and finished so that their number is exact.

Several workers, on several machines, may work on one study, and any of them may be killed at any
moment. What makes the total exact all the same:

- A trial's number is given out once, in order, and a trial that has failed stays failed.
- A trial is run only if fewer than the wanted number of trials before it have not failed. So
  whatever happens later, no more than that can ever finish.
- A trial whose worker is gone is failed first, and then another one takes its place. Should that
  worker come back, it finds its trial failed and its result is dropped.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ..budgets.surface import Surface
from ..schedule import Schedule
from .interrupts import deferred
from .liveness import Alive, Watch, signature, signed_by_us
from .objective import Objective, Outcome
from .space import draw, propose, space_of
from .storage import begin, finish

Sampler = Literal["random", "tpe", "nsga2"]
Measure = Literal["top1", "kl"]


@dataclass(frozen=True)
class Order:
    """What is to be done: the same for all workers of a search."""

    trials: int
    budget: float | None  # in GMACs; None: the whole front
    measure: Measure
    sampler: Sampler = "random"
    seed: int = 0

    @property
    def directions(self) -> list[StudyDirection]:
        return directions(self.measure, front=self.budget is None)


def directions(measure: Measure, front: bool) -> list[StudyDirection]:
    best = StudyDirection.MAXIMIZE if measure == "top1" else StudyDirection.MINIMIZE
    return [best, StudyDirection.MINIMIZE] if front else [best]


@dataclass(frozen=True)
class Finished:
    """A finished trial, on the first half of the pictures."""

    number: int
    schedule: Schedule
    gmacs: float
    top1: float | None
    kl: float
    agreement: float


def finished(study: Study) -> list[Finished]:
    return [_read(trial) for trial in _trials(study) if trial.state == TrialState.COMPLETE]


def tally(study: Study, order: Order) -> tuple[int, FrozenTrial | None]:
    """How many trials are finished, and the best of them where there is one measure of it."""
    done = [trial for trial in _trials(study) if trial.state == TrialState.COMPLETE]
    if not done or order.budget is None:
        return len(done), None
    choose = max if order.measure == "top1" else min
    return len(done), choose(done, key=lambda trial: trial.values[0])


def best_first(found: Sequence[Finished], measure: Measure) -> list[Finished]:
    """Ranked by the measure; many schedules share a top-1, and then the nearer to the unpruned
    model comes first."""

    def rank(each: Finished) -> tuple[float, float, int]:
        hits = -each.top1 if measure == "top1" and each.top1 is not None else 0.0
        return hits, each.kl, each.number

    return sorted(found, key=rank)


def work(
    study: Study,
    order: Order,
    surface: Surface,
    objective: Objective,
    advance: Callable[[Study], None] = lambda study: None,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run trials until all are finished, by whomever, or the work is no longer wanted."""
    watch = Watch()
    try:
        while wanted():
            with deferred():
                trial = _claimed(study, order, watch)
            if trial is None:
                return
            if isinstance(trial, FrozenTrial):
                with Alive(study, trial):
                    _run(study, trial, order, surface, objective)
            else:
                time.sleep(trial)
            with deferred():
                advance(study)
    except BaseException:  # Ctrl-C as well: nobody should wait for what we leave undone
        with deferred():
            for left in _trials(study):
                if left.state == TrialState.RUNNING and signed_by_us(left):
                    _fail(study, left._trial_id)
        raise


def _run(
    study: Study, trial: FrozenTrial, order: Order, surface: Surface, objective: Objective
) -> None:
    with suppress(UpdateFinishedTrialError):  # failed by others meanwhile: theirs takes its place
        space = space_of(surface, order.budget)
        with deferred():
            chosen = draw(study, _sampler(order, trial.number), trial, space)
        schedule = propose(chosen, surface, order.budget)
        outcome, cost = objective(schedule), surface.price(schedule)
        value = outcome.top1 if order.measure == "top1" else outcome.mean_kl
        assert value is not None
        values = [value] if order.budget is not None else [value, cost]
        found = _written(schedule, cost, outcome)
        with deferred():
            finish(study, trial._trial_id, space, chosen, values, {"found": found})


def _claimed(study: Study, order: Order, watch: Watch) -> FrozenTrial | float | None:
    """A trial to run; or None when there is nothing left to do; or seconds to wait, as others
    still run what is missing."""
    trials = _trials(study)
    if sum(trial.state == TrialState.COMPLETE for trial in trials) >= order.trials:
        return None
    if gone := watch.gone(trials):
        for trial in gone:
            _fail(study, trial._trial_id)
        trials = _trials(study)  # one of them may have finished at the last moment
    hopeful = _hopeful(trials)
    if hopeful >= order.trials:
        return 0.2
    claim = begin(study, _template())
    since = claim.number - len(trials)  # claimed by others after we had looked
    if since + hopeful >= order.trials and _hopeful(_trials(study), claim.number) >= order.trials:
        _fail(study, claim._trial_id)
        return 0.2
    return claim


def _hopeful(trials: Sequence[FrozenTrial], before: float = math.inf) -> int:
    """How many before this number have finished or still may."""
    return sum(trial.number < before and trial.state != TrialState.FAIL for trial in trials)


def _trials(study: Study) -> list[FrozenTrial]:
    with deferred():
        return study.get_trials(deepcopy=False)


def _template() -> FrozenTrial:
    """A running trial that says from its first moment on who runs it."""
    return FrozenTrial(
        number=-1, trial_id=-1, state=TrialState.RUNNING, value=None, params={}, distributions={},
        datetime_start=datetime.now(), datetime_complete=None, system_attrs={},
        intermediate_values={}, user_attrs=signature(),
    )  # fmt: skip


def _sampler(order: Order, number: int) -> optuna.samplers.BaseSampler:
    """Seeded anew for each trial: one that resumes must not draw again what was drawn before."""
    seed = random.Random(f"{order.seed} {number}").randrange(2**32)
    if order.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if order.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(10, order.trials // 10))
    population = min(50, max(4, order.trials // 8))
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=population)


def _fail(study: Study, trial_id: int) -> None:
    with suppress(UpdateFinishedTrialError):  # somebody else may have done so, or have finished it
        study._storage.set_trial_state_values(trial_id, TrialState.FAIL)


def _written(schedule: Schedule, cost: float, outcome: Outcome) -> dict[str, Any]:
    return {
        "schedule": schedule.to_json(),
        "gmacs": cost,
        "top1": outcome.top1,
        "kl": outcome.mean_kl,
        "agreement": outcome.agreement,
    }


def _read(trial: FrozenTrial) -> Finished:
    held = dict(trial.user_attrs["found"])
    schedule = Schedule.from_json(held.pop("schedule"))
    return Finished(trial.number, schedule, **held)
