"""A search by a time budget: measured again on a resume, refused if it is missed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.budgets.test_speed_budget import timed
from tests.search.studies import complete_in
from zerotprune import Schedule, cli
from zerotprune.data import demo
from zerotprune.pruning import gmacs
from zerotprune.search import session


def run_search(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run the command in this process, where time can be faked."""
    words = ("--model", "demo", "--data", str(folder), "--trials", "2", "--finalists", "1")
    monkeypatch.setattr(sys, "argv", ["zerotprune", "search", *words, *arguments])
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
    """Measure the budget while the machine is busy, then again on an idle one."""
    full = gmacs(demo.untrained())
    measured, timing = [0.2], [timed(30, 8)]
    monkeypatch.setattr(session, "cost_for", lambda *a, **k: (measured[0] / full, timed(30, 20)))
    monkeypatch.setattr(session, "time_schedule", lambda *a, **k: timing[0])
    out = tmp_path / "schedule.json"
    again = ("--speedup", "1.5", "--out", str(out), "--csv", str(tmp_path / "rows.csv"))
    assert run_search(monkeypatch, folder, *again) == 2
    error = capsys.readouterr().err
    assert "a speedup of 1.5" in error
    assert "3.75" in error
    assert error.count("\n") == 1
    assert sorted(path.suffix for path in tmp_path.iterdir() if "db" not in path.suffix) == []
    assert len(complete_in(tmp_path / "schedule.trials.db")) == 2

    measured[0] = 0.26
    assert run_search(monkeypatch, folder, *again) == 2
    error = capsys.readouterr().err
    assert re.search(r"a speedup of 1\.5 .*0\.200 GMACs.* 0\.260 .*--study", error), error
    assert not out.exists()

    measured[0], timing[0] = 0.21, timed(30, 20)
    assert run_search(monkeypatch, folder, *again) == 0
    assert "0.200 GMACs" in capsys.readouterr().out  # of the trials that are there
    assert Schedule.load(out).stages
