"""Budgets in time: the cost that gives them, samples in turn, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest
import torch

import zerotprune as ztp
from tests.families import build
from tests.nursery import run_script
from zerotprune import Schedule, Stage
from zerotprune.backbones import backbone
from zerotprune.budgets import speed
from zerotprune.budgets.speed import (
    SpeedDial,
    TimeBudget,
    Timed,
    cost_for,
    reach,
    time_schedule,
)
from zerotprune.clock import Timings, quartiles, race
from zerotprune.methods import name_of, resolve
from zerotprune.plan import Plan


def timed(unpruned: float, pruned: float, spread: float = 0.0) -> Timed:
    """Make a timing in milliseconds; `spread` is how far the quartiles lie from the median."""
    factors = (1 - spread, 1 - spread, 1, 1 + spread, 1 + spread)
    seconds = Timings(pruned / 1e3 / factor for factor in factors)
    return Timed(Timings([unpruned / 1e3] * 5), seconds)


def test_a_budget_in_time_is_met_where_time_follows_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("deit")
    geometry = backbone(model).geometry
    full = Plan(Schedule(), geometry).gmacs()

    def fake(model: object, schedules: list[Schedule], images: object, rounds: int) -> list[Timed]:
        return [
            timed(100, 20 + 80 * Plan(schedule, geometry).gmacs() / full) for schedule in schedules
        ]

    monkeypatch.setattr(speed, "time_schedules", fake)
    images = torch.zeros(4, 3, 96, 96)
    cost, timing = cost_for(model, TimeBudget(speedup=1.25), images)
    assert timing.speedup == pytest.approx(1.25, rel=0.05)
    assert cost == pytest.approx(0.75, abs=0.03)
    cost, timing = cost_for(model, TimeBudget(latency_ms=70), images, "tome")
    assert timing.pruned.median == pytest.approx(0.070, rel=0.05)
    assert cost == pytest.approx(50 / 80, abs=0.05)
    with pytest.raises(ValueError, match=r"speedup of 9 at batch 4.*100 ms"):
        cost_for(model, TimeBudget(speedup=9), images)
    with pytest.raises(ValueError, match="needs no pruning"):
        cost_for(model, TimeBudget(latency_ms=200), images)


def test_a_model_that_is_faster_as_soon_as_it_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a pruned model has a faster patch embedding, whatever its cost."""
    model = build("deit")
    geometry = backbone(model).geometry
    full = Plan(Schedule(), geometry).gmacs()

    def fake(model: object, schedules: list[Schedule], images: object, rounds: int) -> list[Timed]:
        return [timed(100, 80 * Plan(schedule, geometry).gmacs() / full) for schedule in schedules]

    monkeypatch.setattr(speed, "time_schedules", fake)
    images = torch.zeros(4, 3, 96, 96)
    cost, timing = cost_for(model, TimeBudget(speedup=1.1), images)
    assert cost == pytest.approx(0.99, abs=0.03)
    assert timing.speedup > 1.2
    cost, timing = cost_for(model, TimeBudget(speedup=1.4), images)
    assert timing.speedup == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize(
    ("budget", "timing", "message"),
    [
        (TimeBudget(speedup=1.5), timed(30, 20), None),
        (TimeBudget(speedup=1.5), timed(30, 17), r"1.76 times as fast.*5%"),
        (TimeBudget(speedup=1.5), timed(30, 24), r"1.25 times as fast.*5%"),
        (TimeBudget(latency_ms=20), timed(30, 20.5), None),
        (TimeBudget(latency_ms=20), timed(30, 26), r"pruned 26 ms.*5%"),
        (TimeBudget(speedup=1.5), timed(30, 20, spread=0.3), "too busy"),
    ],
)
def test_a_time_that_is_missed_or_cannot_be_told_is_refused(
    budget: TimeBudget, timing: Timed, message: str | None
) -> None:
    if message is None:
        budget.check(timing)
        return
    with pytest.raises(ValueError, match=f"expected {budget}, .*{message}.*; wait"):
        budget.check(timing, "wait")


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "either speedup"),
        ({"speedup": 1.5, "latency_ms": 3.0}, "either speedup"),
        ({"speedup": 0.9}, "speedup must be above 1"),
        ({"latency_ms": -1.0}, "latency_ms must be above 0"),
    ],
)
def test_time_budgets_that_make_no_sense(budget: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TimeBudget(**budget)


def test_calls_are_sampled_in_turn() -> None:
    """The fake clock gives three seconds to the first call, and two to the next."""
    hands, order = cycle([3.0, 2.0]), list[str]()

    def clock(call: Callable[[], object], repeat: int) -> float:
        order.append(str(call()))
        return repeat * next(hands)

    rounds = [[*map(len, timings)] for timings in race([lambda: "a", lambda: "b"], 2, clock)]
    assert rounds == [[1, 1], [2, 2]]
    *_, timings = race([lambda: "a", lambda: "b"], 5, clock)
    assert timings == [[3.0] * 5, [2.0] * 5]
    assert order == ["a", "b"] * 9


def test_a_sample_of_quick_calls_repeats_them() -> None:
    asked: list[int] = []

    def clock(call: str, repeat: int) -> float:
        asked.append(repeat)
        return 0.001 * repeat

    *_, (seconds,) = race(["a"], 3, clock)
    assert asked == [1, 20, 20, 20]
    assert seconds == pytest.approx([0.001] * 3)


def test_quartiles_are_numpys() -> None:
    values = [4.0, 1.0, 7.0, 2.0, 9.0, 3.0]
    wanted = torch.tensor(values).quantile(torch.tensor([0.25, 0.5, 0.75]))
    assert quartiles(values) == pytest.approx(tuple(wanted.tolist()))
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)


def test_timings_are_compared_by_medians_and_round_by_round() -> None:
    reference, seconds = Timings([5.0, 1.0, 2.0, 4.0, 3.0]), Timings([1.0, 1.0, 4.0, 2.0, 2.0])
    assert (reference.median, reference.spread, Timings([1.0]).spread) == (3.0, 2.0, 0.0)
    assert seconds.speedup(reference) == 1.5
    assert seconds.speedup_quartiles(reference) == quartiles([5.0, 1.0, 0.5, 2.0, 1.5])


def test_a_model_is_pruned_to_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fake clock time follows cost, with noise that a correction has to remove."""
    model, images = build("deit"), torch.zeros(2, 3, 96, 96)
    geometry = backbone(model).geometry
    full, calls = Plan(Schedule(), geometry).gmacs(), cycle([0.9, 1.0, 1.1])

    def fake(model: object, schedules: list[Schedule], images: object, rounds: int) -> list[Timed]:
        shares = [Plan(schedule, geometry).gmacs() / full for schedule in schedules]
        noise = [next(calls) if rounds < 10 else 1.0 for _ in schedules]
        return [timed(100, n * (20 + 80 * share)) for n, share in zip(noise, shares, strict=True)]

    monkeypatch.setattr(speed, "time_schedules", fake)
    pruned = ztp.prune_(model, speedup=1.3, example=images)
    share = ztp.gmacs(pruned) / full
    assert 100 / (20 + 80 * share) == pytest.approx(1.3, rel=0.05)
    with pytest.raises(ValueError, match="example"):
        ztp.prune_(model, speedup=1.3)
    with pytest.raises(ValueError, match="speedup"):
        ztp.prune_(model, cost=0.5, speedup=1.3, example=images)


def test_methods_are_set_to_speeds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget by budget, method by method; the fake clock is wrong until there are many rounds."""
    model, images = build("deit"), torch.zeros(2, 3, 96, 96)
    geometry = backbone(model).geometry
    full, turns = Plan(Schedule(), geometry).gmacs(), list[int]()

    def fake(model: object, schedules: list[Schedule], images: object, rounds: int) -> list[Timed]:
        turns.append(len(schedules))
        shares = [Plan(schedule, geometry).gmacs() / full for schedule in schedules]
        return [timed(100, 10 + (90 if rounds > 10 else 70) * share) for share in shares]

    monkeypatch.setattr(speed, "time_schedules", fake)
    dials = [SpeedDial(model, resolve(name), images) for name in ("fold", "tome", "zero-tprune")]
    budgets = [TimeBudget(speedup=1.2), TimeBudget(speedup=1.5), TimeBudget(speedup=50)]
    results = reach(budgets, dials)
    assert [name_of(result.schedule.method) for result in results] == [
        "fold",
        "tome",
        "zero-tprune",
    ] * 3
    assert turns[:2] == [6, 6]  # two costs of each, then all that may be met, in one turn
    for result in results[:6]:
        assert not result.failure
        assert result.timed.speedup == pytest.approx(result.budget.speedup, rel=0.05)
        share = Plan(result.schedule, geometry).gmacs() / full
        assert 100 / (10 + 90 * share) == pytest.approx(result.budget.speedup, rel=0.05)
    assert all("speedup of 50 at batch 2 cannot be reached by" in result.failure
               for result in results[6:])  # fmt: skip


COMPILED = """
import torch
from tests.families import SMALL, build
from zerotprune import Schedule, Stage
from zerotprune.budgets.speed import time_schedules
from zerotprune.methods import Slicing

SMALL["depth"] = 2
torch._dynamo.config.recompile_limit = 2
graphs, model = [], build("deit")

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

schedules = [Schedule((Stage(1, 0.3 + at / 20),), Slicing()) for at in range(3)]
for vit in (model, torch.compile(model, backend=backend)):
    time_schedules(vit, schedules, torch.zeros(1, 3, 96, 96), rounds=1)
    print(len(graphs))
"""


def test_copies_are_compiled_as_the_model_is() -> None:
    """The model's own backend compiles them, more than torch compiles of one forward."""
    assert run_script(COMPILED) == ["0", "4"]


def test_a_timed_model_is_left_alone() -> None:
    model = build("deit")
    timing = time_schedule(model, Schedule((Stage(1, 0.5),)), torch.zeros(2, 3, 96, 96), rounds=2)
    assert min(*timing.unpruned, *timing.pruned) > 0
    assert "pruned" not in repr(model)
