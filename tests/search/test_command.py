"""`zerotprune search` as a user types it."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
import timm
from optuna.trial import FrozenTrial
from safetensors.torch import save_file

from tests.commands import MAIN, quickly
from tests.nursery import nursery
from tests.search.studies import complete_in
from tests.waiting import wait_until
from zerotprune import Schedule
from zerotprune.backbones import backbone
from zerotprune.cli.options import BudgetOptions, ModelOptions
from zerotprune.cli.search import search as search_command
from zerotprune.data import demo
from zerotprune.methods import ZeroTPrune
from zerotprune.search.surface import StageSurface

#: a search that does not finish while the test is looking for its sixth trial
SLOW = f"""
import time, optuna
set_attr = optuna.Trial.set_user_attr
def set_slowly(*args):
    time.sleep(0.3)
    set_attr(*args)
optuna.Trial.set_user_attr = set_slowly
{MAIN}
"""


def test_search_writes_a_schedule_a_figure_and_rows(folder: Path, tmp_path: Path) -> None:
    common = ("--data", str(folder), "--cost", "0.4", "--finalists", "3", "--figure", "search.png",
              "--csv", "rows.csv", "--method", "zero-tprune")  # fmt: skip
    done = quickly("search", "--model", "demo", *common, "--trials", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("method's form", "unpruned", "Winner's curse", "2nd half", "chosen: "):
        assert text in done.stdout
    schedule = Schedule.load(tmp_path / "schedule.json")
    surface = StageSurface(backbone(demo.untrained()).geometry, ZeroTPrune())
    assert surface.price(schedule) == pytest.approx(0.4 * surface.unpruned, rel=0.005)
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "rows.csv").read_text().count("\n") == 4
    names = {path.name for path in tmp_path.iterdir()}
    kept = {"schedule.json", "schedule.trials.db", "search.png", "rows.csv"}
    assert {name for name in names if not name.endswith(("-wal", "-shm"))} == kept
    assert len(_values(tmp_path / "schedule.trials.db")) == 5
    again = quickly("search", "--model", "demo", *common, "--trials", "5", "--sampler", "tpe",
                    cwd=tmp_path)  # fmt: skip
    assert re.search("5 of 5 trials.*--sampler random", again.stdout), again.stdout
    with pytest.raises(ValueError, match=r"budget --cost 0\.4 .*--cost 0\.5 "):
        search_command(
            "demo", str(folder), budget=BudgetOptions(cost=0.5), method="zero-tprune",
            out=tmp_path / "schedule.json",
        )  # fmt: skip


def test_without_labels_any_model_and_any_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Search the whole front of a model from a file, whose classes do not match the data."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in sorted(folder.rglob("*.png"))[:6]:
        (flat / path.name).write_bytes(path.read_bytes())
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "own.safetensors")
    search_command("test_vit", str(flat), loading=ModelOptions(tmp_path / "own.safetensors"),
                   labels=False, sampler="nsga2", trials=6, finalists=2,
                   out=tmp_path / "schedule.json", figure=tmp_path / "front.svg")  # fmt: skip
    assert "the second" in capsys.readouterr().out
    written = list(tmp_path.glob("schedule-*.json"))
    assert 1 <= len(written) <= 2
    assert all(Schedule.load(path) for path in written)


def test_killed_or_stopped_it_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    """Kill it in the middle of a trial, stop it by Ctrl-C, then let it finish."""
    arguments = ("--data", str(folder), "--cost", "0.5", "--finalists", "1", "--trials", "12")
    path, kept = tmp_path / "schedule.trials.db", dict[int, object]()
    for number, blow in ((3, signal.SIGKILL), (6, signal.SIGINT)):
        child = nursery().start(SLOW, "search", "--model", "demo", *arguments, cwd=tmp_path)
        _wait_for_trials(path, number, child)
        os.kill(child, blow)
        code, out, error = nursery().wait()
        now = _values(path)
        assert number <= len(now) < 12
        assert kept.items() <= now.items()
        kept = now
    assert code == 130, error
    assert f"{len(kept)} of 12 trials" in out.replace("\n", " ")
    assert "Traceback" not in error
    assert Schedule.load(tmp_path / "schedule.json").stages
    done = quickly("search", "--model", "demo", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"after {len(kept)} of 12 trials\n" in done.stdout
    finished = _values(path)
    assert kept.items() <= finished.items()
    assert len(finished) == 12
    assert len(set(map(str, finished.values()))) == 12


def _wait_for_trials(path: Path, count: int, child: int) -> None:
    """Wait for trials by reading the file without writing to it."""

    def finished() -> int:
        if not path.exists():
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            try:
                select = "SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'"
                [[trials]] = database.execute(select)
            except sqlite3.OperationalError:
                return 0  # the file is there, the table not yet
        return int(trials)

    def over() -> bool:
        return finished() >= count or not nursery().lives(child)

    wait_until(over, f"{count} trials", pause=0.05)


def _values(path: Path) -> dict[int, object]:
    return {trial.number: (trial.params, trial.values) for trial in complete_in(path)}


def test_workers_share_one_file_exactly(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for total in (20, 90, 400):  # on a busy machine one may be done before the other begins
        search_command("demo", str(folder), budget=BudgetOptions(cost=0.5), trials=total,
                       finalists=1, workers=2, out=tmp_path / "schedule.json")  # fmt: skip
        output = capsys.readouterr().out
        assert re.search(f"demo.* {total} trials.* 10 images", output), output
        trials = complete_in(tmp_path / "schedule.trials.db")
        assert total <= len(trials) <= total + 1  # one more at most, which does not count
        assert len({str(trial.params) for trial in trials}) == len(trials)
        if at_once := _run_at_once(trials):
            break
    assert at_once


def _run_at_once(trials: list[FrozenTrial]) -> bool:
    """Did some trial begin before the previous one had ended?"""
    spans = [(trial.datetime_start, trial.datetime_complete) for trial in trials]
    return any(
        after is not None and before is not None and after < before
        for (_, before), (after, _) in pairwise(spans)
    )


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    ((), "give one budget"),
    (("--cost", "0.5", "--gmacs", "0.2"), "give one budget"),
    (("--cost", "0.5", "--sampler", "nsga2"), "nsga2 searches all budgets"),
    (("--gmacs", "0.001"), "0.3545 unpruned and at least 0.0"),
    (("--gmacs", "5"), "0.3545 unpruned and at least 0.0"),
    (("--speedup", "0.9"), "speedup must be above 1"),
    (("--latency-ms", "-1"), "--latency-ms must be above 0"),
    (("--cost", "0.5", "--trials", "0"), "--trials must be at least 1"),
    (("--cost", "0.5", "--workers", "11"), "too few images: 10"),
    (("--cost", "0.5", "--limit", "1"), "too few images: 1"),
    (("--cost", "0.5", "--data", "nowhere"), "no data at nowhere"),
    (("--cost", "0.5", "--data", "empty", "--no-labels"), "no images in empty"),
    (("--cost", "0.5", "--method", "evit"), "got evit"),
    (("--cost", "0.5", "--out", "no/x.json"), "no folder no"),
    (("--cost", "0.5", "--figure", "x.txt"), "the ending must be one of"),
    (("--cost", "0.5", "--storage", "no/x.db"), "no folder no"),
    (("--cost", "0.5", "--storage", "postgresql+psycopg://u:secret@127.0.0.1:1/x"),
     "cannot store trials in postgresql+psycopg://u:***@127.0.0.1:1/x"),
    (("--cost", "0.5", "--storage", "nosuch://x"), "cannot store trials in nosuch://x"),
    (("--cost", "0.5", "--storage", "text"), "cannot store trials in text"),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "message"), MISTAKES)
def test_mistakes(folder: Path, tmp_path: Path, extra: tuple[str, ...], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("not a database, but long enough to be read as one" * 40)
    data = () if "--data" in extra else ("--data", str(folder))
    done = quickly("search", "--model", "demo", *data, *extra, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "text"]
