"""`bench` as a user types it: tables, rows, a plot, and one sentence for each mistake."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.test_evaluate import folder, images_in  # noqa: F401  a fixture
from tests.commands import quickly, zerotprune
from zerotprune.cli import main
from zerotprune.cli.bench import remarks, speed_table
from zerotprune.cli.console import speedup_cell
from zerotprune.clock import Timings
from zerotprune.measure.accuracy import Contender
from zerotprune.measure.speed import Entrant, Group, Speed
from zerotprune.methods import resolve
from zerotprune.schedule import Schedule, Stage

COMMON = ("bench", "--model", "demo", "--device", "cpu", "--threads", "1", "--mode", "eager")


def test_the_command_prints_a_table_and_writes_rows_and_a_plot(
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    done = zerotprune(
        *COMMON, "--batch", "1", "2", "--rounds", "2", "--method", "zero-tprune", "tome",
        "--data", str(folder), "--workers", "0", "--csv", "rows.csv", "--plot", "speed.svg",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 thread" in done.stdout
    assert "(eager)" in done.stdout
    assert "not measured" not in done.stdout
    assert "<svg" in (tmp_path / "speed.svg").read_text()
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ["unpruned", "slicing", "zero-tprune", "tome"]
    assert [(row["batch"], row["name"]) for row in rows] == [
        (batch, name) for batch in "12" for name in names
    ]
    filled = ("time", "command", "versions", "hardware", "model", "data", "gmacs", "gmacs_paper",
              "top1", "change", "images_per_second", "batch", "precision", "latency_ms",
              "latency_spread_ms", "speedup", "of_limit")  # fmt: skip
    for row in rows:
        assert all(row[name] for name in filled), row
        assert (row["measure"], row["mode"], row["threads"]) == ("speed", "eager", "1")
        assert row["images"] == str(images_in(folder))
        assert bool(row["schedule"]) == bool(row["backend"]) == (row["name"] != "unpruned")
        rate = float(row["batch"]) / float(row["latency_ms"]) * 1e3
        assert float(row["images_per_second"]) == pytest.approx(rate, rel=0.1)
        assert row["peak_memory_mb"] == row["failure"] == ""


def test_json_rows_and_the_remark_on_missing_accuracy(tmp_path: Path) -> None:
    """Measure several costs, one after the other."""
    few = (*COMMON, "--batch", "1", "--rounds", "1", "--method", "zero-tprune", "--cost", "0.8")
    done = zerotprune(*few, "0.6", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == 2 * ["unpruned", "slicing", "zero-tprune"]
    costs = [row["gmacs"] / rows[0]["gmacs"] for row in rows if row["name"] == "zero-tprune"]
    assert costs == pytest.approx([0.8, 0.6], rel=0.01)
    assert all("top1" not in row for row in rows)
    assert rows[0]["speedup"] == rows[1]["of_limit"] == 1.0
    plain = zerotprune(*few, cwd=tmp_path)
    assert re.search("accuracy.*--data", plain.stdout), plain.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_method_of_a_schedule_takes_part(tmp_path: Path) -> None:
    Schedule((Stage(3, 0.7),), resolve("evit")).save(tmp_path / "own.json")
    done = quickly(*COMMON, "--schedule", "own.json", "--batch", "1", "--rounds", "1", "--json",
                   cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    evit, *others = [row["gmacs"] for row in json.loads(done.stdout)[2:]]
    assert json.loads(done.stdout)[2]["name"] == "evit"
    assert others == pytest.approx([evit] * 3, rel=0.01)


def test_a_ratio_within_its_spread_is_inconclusive() -> None:
    """0.90× with quartiles of 106 ms at 174 ms was noise; 1.25× of quiet rounds is a result."""
    unpruned = _speed("unpruned", [0.100, 0.100, 0.101, 0.102, 0.100])
    quick = _speed("tome", [0.080, 0.080, 0.081, 0.082, 0.080])
    noisy = _speed("fold", [0.060, 0.174, 0.200, 0.111, 0.090])
    group = Group([unpruned, quick, noisy])
    cells = [
        speedup_cell(group.speedup(speed), group.speedup_range(speed)) for speed in group.speeds
    ]
    assert cells == ["1.00×", "1.25×", "inconclusive\n(0.57–1.11)"]
    assert any("Inconclusive" in line for line in remarks([group], {}, None, True))
    assert not any("Inconclusive" in line for line in remarks([Group([quick])], {}, None, True))
    console = Console(width=80, file=io.StringIO())
    console.print(speed_table(group, "demo", "two cores", {}))
    assert "inconclusive" in console.file.getvalue()  # type: ignore[attr-defined]


def _speed(name: str, seconds: list[float]) -> Speed:
    return Speed(Entrant(Contender(name), 1.0, 1.0), "eager", 1, "float32", Timings(seconds))


@pytest.mark.filterwarnings("ignore:Cyclopts")  # it would rather be told its arguments in a test
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--mode", "graph"), "mode graph needs a CUDA device, got cpu"),
        (("--batch", "0"), "--batch must be at least 1, got 0"),
        (("--rounds", "0"), "rounds must be at least 1"),
        (("--threads", "0"), "threads must be at least 1"),
        (("--limit", "3", "--strict"), "--limit and --strict need --data"),
        (("--probe", "knn"), "--probe needs --data"),
        (("--method", "topme"), "unknown method 'topme'"),
        (("--cost", "0.5", "--gmacs", "1"), "give one budget, not several: --cost and --gmacs"),
        (("--schedule", "nope"), "neither a preset"),
        (("--cost", "0.001"), "cannot be met"),
        (("--weights", "w.safetensors", "--random-weights"), "not both"),
        (("--random-weights",), "the built-in model has weights of its own"),
        (("--cost", "0.7", "0.5", "--plot", "a.png"), "--plot draws one cost, got 2"),
        (("--cost", "0.7", "0.001"), "cannot be met"),
        (("--csv", "no/folder/rows.csv"), "no folder"),
        (("--plot", "speed.xyz"), "speed.xyz"),
        (("--device", "toaster"), "unknown device 'toaster'"),
        (("--precision", "float8"), "float8"),
    ],
)
def test_mistakes(
    extra: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run in this process: sixteen others would take half a minute to import torch."""
    device = () if "--device" in extra else ("--device", "cpu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["zerotprune", "bench", "--model", "demo", *device, *extra])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    assert stopped.value.code == 2, output
    assert message in output.out + output.err
    assert "Traceback" not in output.err
    assert list(tmp_path.iterdir()) == []
