"""Budgets in time: measured, measured again, and refused where they are missed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
import torch
from zerotprune.budgets.latency import Timed, budget_for
from zerotprune.search.budget import SearchBudget, Timing, refuse_missed_time, time_in_turn

from tests.families import build
from tests.search.studies import trials_in
from zerotprune import Schedule, Stage, cli
from zerotprune.backbones import backbone
from zerotprune.budgets import latency
from zerotprune.budgets.surface import Surface
from zerotprune.methods import ZeroTPrune
from zerotprune.search import session


def test_a_budget_in_time_is_met_where_time_follows_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("deit")
    surface = Surface(backbone(model).geometry, ZeroTPrune())

    def fake(model: object, schedule: Schedule, *others: object) -> Timed:
        return Timed(100.0, 20 + 80 * surface.price(schedule) / surface.unpruned)

    monkeypatch.setattr(latency, "measure", fake)
    images = torch.zeros(4, 3, 96, 96)
    gmacs, timed = budget_for(model, ZeroTPrune(), images, speedup=1.25)
    assert timed.speedup >= 1.25
    assert gmacs / surface.unpruned == pytest.approx(0.75, abs=0.03)
    gmacs, timed = budget_for(model, ZeroTPrune(), images, latency_ms=70)
    assert timed.pruned <= 70
    assert gmacs / surface.unpruned == pytest.approx(50 / 80, abs=0.03)
    with pytest.raises(ValueError, match=r"9 times the speed at batch 4 cannot be reached.*100 ms"):
        budget_for(model, ZeroTPrune(), images, speedup=9)
    with pytest.raises(ValueError, match="needs no pruning"):
        budget_for(model, ZeroTPrune(), images, latency_ms=200)


@pytest.mark.parametrize(
    ("budget", "timing", "says"),
    [
        (SearchBudget(speedup=1.5), Timing([30.0] * 4, [20.0, 20, 19, 21]), None),
        (SearchBudget(speedup=1.5), Timing([30.0] * 4, [17.0] * 4), r"at 1.76 times as fast"),
        (SearchBudget(speedup=1.5), Timing([30.0] * 4, [24.0] * 4), r"at 1.25 times as fast"),
        (SearchBudget(latency_ms=20), Timing([30.0] * 4, [22.0] * 4), None),
        (SearchBudget(latency_ms=20), Timing([30.0] * 4, [26.0] * 4), r"at 26 ms, more than 15 %"),
        # As fast as was asked on average; but who knows?
        (SearchBudget(latency_ms=20), Timing([30.0] * 4, [14.0, 15, 25, 26]), "between 14.8 and"),
        (SearchBudget(speedup=1.5), Timing([30.0] * 4, [10.0, 15, 25, 30]), "too busy"),
        # Both are slow at times, and always by as much.
        (SearchBudget(speedup=1.5), Timing([15.0, 30, 60, 90], [10.0, 20, 40, 60]), None),
    ],
)
def test_a_time_that_is_missed_or_cannot_be_told_is_refused(
    budget: SearchBudget, timing: Timing, says: str | None
) -> None:
    if says is None:
        refuse_missed_time(budget, timing)
    else:
        with pytest.raises(ValueError, match=f"^{budget} was asked for, .*{says}.*trials are kept"):
            refuse_missed_time(budget, timing)


def test_both_models_are_timed_in_turn() -> None:
    """By a clock that gives three seconds to whoever comes first, and two to the next."""
    model, hands = build("deit"), cycle([3.0, 2.0])

    def clock(call: Callable[[], object], repeat: int) -> float:
        call()
        return repeat * next(hands)

    timing = time_in_turn(model, Schedule((Stage(1, 0.5),)), ZeroTPrune(), precision="float32",
                          batch=2, device="cpu", clock=clock)  # fmt: skip
    assert len(timing.unpruned) == len(timing.pruned) == 20
    assert timing.speedups == [1.5] * 20
    assert str(timing) == "unpruned 3000 ms, chosen 2000 ms, 1.50 times as fast"


def run_search(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """The command in this process, where time can be made up."""
    given = ("--model", "demo", "--data", str(folder), "--trials", "2", "--finalists", "1")
    monkeypatch.setattr(sys, "argv", ["zerotprune", "search", *given, *arguments])
    try:
        cli.main()
    except SystemExit as stopped:
        return int(str(stopped.code))
    return 0


@pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")
def test_a_search_that_misses_its_time_writes_no_schedule(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A budget measured while the machine was busy; the same again on an idle one."""
    measured, timing = [0.2], [Timing([30.0] * 4, [8.0] * 4)]
    monkeypatch.setattr(latency, "budget_for", lambda *a, **k: (measured[0], Timed(30.0, 20.0)))
    monkeypatch.setattr(session, "time_in_turn", lambda *a, **k: timing[0])
    out = tmp_path / "schedule.json"
    again = ("--speedup", "1.5", "--out", str(out), "--csv", str(tmp_path / "rows.csv"))
    assert run_search(monkeypatch, folder, *again) == 2
    error = capsys.readouterr().err
    assert "--speedup 1.5 was asked for, and the chosen schedule is measured at 3.75" in error
    assert error.count("\n") == 1
    assert sorted(path.suffix for path in tmp_path.iterdir() if "db" not in path.suffix) == []
    assert len(trials_in(tmp_path / "schedule.trials.db")) == 2

    measured[0] = 0.26
    assert run_search(monkeypatch, folder, *again) == 2
    error = capsys.readouterr().err
    assert "--speedup 1.5 was 0.200 GMACs when this study began and is 0.260" in error
    assert not out.exists()

    measured[0], timing[0] = 0.21, Timing([30.0] * 4, [20.0] * 4)
    assert run_search(monkeypatch, folder, *again) == 0
    assert "0.200 GMACs" in capsys.readouterr().out  # of the trials that are there
    assert Schedule.load(out).stages
