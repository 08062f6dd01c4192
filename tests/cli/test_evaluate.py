"""`evaluate` and `compare` on small folders of images, as a user types them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import zerotprune as ztp
from tests.app.serving import free_port
from tests.commands import MAIN, quickly, zerotprune
from tests.nursery import nursery
from tests.thorough import thorough
from tests.waiting import GUARD
from zerotprune.cli.bench import bench
from zerotprune.cli.compare import compare
from zerotprune.cli.demo import demo as demo_command
from zerotprune.cli.evaluate import evaluate
from zerotprune.cli.options import ModelOptions, ReadingOptions
from zerotprune.data import demo

COUNT = 14
#: a command as torchrun starts it, one of two processes
RANKED = f"""
import os, sys
port, rank = sys.argv.pop(), sys.argv.pop()
os.environ |= {{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}}
{MAIN}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the demo's own images as an image folder of ten classes."""
    root = tmp_path_factory.mktemp("data") / "digits"
    images, labels = demo.images(COUNT, seed=8)
    for number in range(10):
        (root / str(number)).mkdir(parents=True)
    filler, _ = demo.images(10, seed=9)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        _save(image, root / str(int(label)) / f"{number:03d}.png")
    for number, image in enumerate(filler):
        if not list((root / str(number)).iterdir()):
            _save(image, root / str(number) / "filler.png")
    return root


def _save(image: Tensor, path: Path) -> None:
    pixels = ((image + 1) * 127.5).round().clamp(0, 255).byte()
    Image.fromarray(np.asarray(pixels.permute(1, 2, 0))).save(path)


def images_in(folder: Path) -> int:
    return len(list(folder.rglob("*.png")))


def rows_of(text: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(text)
    return rows


def test_evaluate_prints_json_and_appends_rows(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    common = ("evaluate", "--model", "demo", "--data", str(folder), "--workers", "0")
    done = zerotprune(*common, "--cost", "0.7", "0.5", "--csv", str(target), "--json")
    assert done.returncode == 0, done.stderr
    plain, pruned, less = rows_of(done.stdout)
    assert plain["images"] == images_in(folder)
    assert float(str(plain["top1"])) > 80
    ratio = float(str(pruned["gmacs"])) / float(str(plain["gmacs"]))
    assert ratio == pytest.approx(0.7, rel=0.01)
    assert float(str(less["gmacs"])) == pytest.approx(0.5 * float(str(plain["gmacs"])), rel=0.01)
    again = zerotprune(*common, "--method", "tome", "--gmacs", "0.25", "--csv", str(target),
                       "--no-speed")  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "tome" in again.stdout
    assert "speedup" not in again.stdout
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["unpruned", "fold", "fold", "unpruned", "tome"]
    assert [bool(row["images_per_second"]) for row in rows] == [True, True, True, False, False]
    assert all(row["top1"] for row in rows)


@pytest.mark.parametrize("command", ["evaluate", "compare", "bench", "demo"])
def test_the_hardware_is_what_the_model_ran_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """On a machine with a GPU, run on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    loading, csv_file = ModelOptions(device="cpu"), tmp_path / "rows.csv"
    reading = ReadingOptions(workers=0, limit=4)
    if command == "evaluate":
        evaluate("demo", str(folder), loading=loading, reading=reading, csv=csv_file)
    elif command == "compare":
        compare("demo", str(folder), cost=[0.7], method=["tome"], loading=loading,
                reading=reading, csv=csv_file)  # fmt: skip
    elif command == "bench":
        bench("demo", method=["tome"], loading=loading, batch=[1], mode=["eager"], rounds=1,
              csv=csv_file)  # fmt: skip
    else:
        monkeypatch.setattr("zerotprune.cli.demo.METHODS", ("tome",))
        monkeypatch.setattr("zerotprune.cli.demo._draw_merges", lambda *_: None)
        demo_command(images=2, out=tmp_path / "demo.png", csv=csv_file)
    with csv_file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert {row["hardware"].partition(" ")[0] for row in rows} == {"CPU"}


def test_a_saved_model_runs_as_it_was_saved(folder: Path, tmp_path: Path) -> None:
    """With features for every patch, the last block is computed for all of them."""
    model = demo.model()
    ztp.prune_(model, cost=0.6, outputs="grid")
    ztp.save(model, tmp_path / "saved")
    done = quickly("evaluate", str(tmp_path / "saved"), str(folder), "--no-speed", "--json",
                   "--workers", "0")  # fmt: skip
    assert done.returncode == 0, done.stderr
    needed = rows_of(done.stdout)[1]["gmacs_needed"]
    assert needed == pytest.approx(ztp.gmacs(model, compute="needed"), abs=1e-6)
    info = quickly("info", str(tmp_path / "saved")).stdout
    assert "the last block is whole: its patch tokens are read" in " ".join(info.split())


def test_compare_takes_each_method_and_cost_once(folder: Path) -> None:
    done = quickly("compare", "demo", str(folder), "--method", "tome", "tome", "--cost", "0.7",
                   "0.7", "--workers", "0", "--limit", "4")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tome") == 1


def test_every_plot_is_checked_before_the_work(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = quickly("compare", "demo", str(folder), "--plots", str(tmp_path / "file"))
    assert "no folder" in done.stderr
    (tmp_path / "accuracy-speed.png").mkdir()
    done = quickly("compare", "demo", str(folder), "--plots", str(tmp_path))
    assert done.returncode == 2
    assert "accuracy-speed.png" in done.stderr
    assert done.stdout == ""


def test_random_weights_are_told(folder: Path) -> None:
    done = quickly("evaluate", "test_vit", str(folder), "--classes", "10", "--random-weights",
                   "--no-speed", "--workers", "0")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "random weights" in done.stdout


def by_hand(arguments: list[str]) -> str:
    """Start both processes as torchrun does, without its launcher; return what is printed."""
    port = str(free_port())
    children = [nursery().start(RANKED, *arguments, rank, port) for rank in ("0", "1")]
    first, second = map(nursery().wait, children)
    assert first.returncode == second.returncode == 0, first.stderr[:4000] + second.stderr[:4000]
    assert second.stdout == ""  # the first prints
    return first.stdout


def by_torchrun(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--standalone", "-m", "zerotprune", *arguments]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


@pytest.mark.parametrize("start", [by_hand, pytest.param(by_torchrun, marks=thorough)])
def test_two_processes_count_every_image_once(
    folder: Path, start: Callable[[list[str]], str]
) -> None:
    assert images_in(folder) % 2 == 1
    arguments = ["evaluate", "--model", "demo", "--data", str(folder), "--cost", "0.7", "--json",
                 "--device", "cpu", "--workers", "0", "--batch", "4"]  # fmt: skip
    one, two = zerotprune(*arguments).stdout, start(arguments)
    for alone, together in zip(rows_of(one), rows_of(two), strict=True):
        for name in ("images", "top1", "top5", "change", "change_error", "gmacs"):
            assert alone[name] == together[name], name


def test_compare_writes_table_rows_and_plots(folder: Path, tmp_path: Path) -> None:
    done = zerotprune(
        "compare", "--model", "demo", "--data", str(folder), "--workers", "0", "--limit", "8",
        "--cost", "0.7", "--method", "fold", "--method", "tome", "--method", "ats",
        "--csv", str(tmp_path / "rows.csv"), "--plots", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fold − tome" in done.stdout
    for name in ("accuracy-gmacs.png", "accuracy-speed.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    costs = [float(row["gmacs"]) for row in rows]
    for cost in costs[1:]:
        assert cost == pytest.approx(0.7 * costs[0], rel=0.02)


def test_compare_puts_methods_at_equal_speed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the fake clock time follows cost, and ToMe has an overhead."""
    from zerotprune.budgets import speed
    from zerotprune.budgets.speed import Timed
    from zerotprune.clock import Timings
    from zerotprune.methods import name_of
    from zerotprune.pruning import gmacs

    def fake(model: Any, schedules: list[Any], images: object, rounds: int) -> list[Timed]:
        shares = [gmacs(model, schedule) / gmacs(model) for schedule in schedules]
        late = [0.15 * (name_of(schedule.method) == "tome") for schedule in schedules]
        times = [0.3 + 0.7 * share + extra for share, extra in zip(shares, late, strict=True)]
        return [Timed(Timings([0.1]), Timings([0.1 * time])) for time in times]

    monkeypatch.setattr(speed, "time_schedules", fake)
    rows, reading = tmp_path / "rows.csv", ReadingOptions(workers=0, batch=4)
    compare("demo", str(folder), speedup=[1.25, 2.1], method=["fold", "tome"], reading=reading,
            csv=rows, plots=tmp_path)  # fmt: skip
    output = " ".join(capsys.readouterr().out.split())
    assert re.search(r"speedup of 2\.1 at batch 4\b.* tome\b", output), output
    assert "fold − tome at 1.25× and 1.25×" in output
    with rows.open(newline="") as file:
        unpruned, *written = csv.DictReader(file)
    assert [row["name"] for row in written] == ["fold", "tome", "fold", "tome"]
    fold, tome, faster, missed = written
    for row, wanted in ((fold, 1.25), (tome, 1.25), (faster, 2.1)):
        assert float(row["speedup"]) == pytest.approx(wanted, rel=0.05)
        assert float(row["kl"]) > 0
    ours, theirs = (float(row["gmacs"]) / float(unpruned["gmacs"]) for row in (fold, tome))
    assert ours == pytest.approx(0.5 / 0.7, rel=0.05)
    assert theirs == pytest.approx((0.8 - 0.45) / 0.7, rel=0.05)
    assert "cannot be reached by tome" in missed["failure"]
    assert not missed["top1"]
    assert 1.5 < float(missed["speedup"]) < 2.1
    assert (tmp_path / "accuracy-speed.png").read_bytes().startswith(b"\x89PNG")


def test_a_broken_image_is_named_and_counted_or_stops(folder: Path, tmp_path: Path) -> None:
    import shutil

    data = tmp_path / "data"
    shutil.copytree(folder, data)
    victim = next(iter(sorted(data.rglob("*.png"))))
    victim.write_bytes(victim.read_bytes()[:200])
    common = ("evaluate", "--model", "demo", "--data", str(data), "--workers", "0")
    done = zerotprune(*common)
    assert done.returncode == 0, done.stderr
    assert victim.name in done.stdout.replace("\n", "")
    assert re.search(r"\b1 images?\b.*\bread", done.stdout), done.stdout
    strict = quickly(*common, "--strict")
    assert strict.returncode == 2
    assert victim.name in strict.stderr


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--data", "no/such/folder"), "no data at no/such/folder"),
        (("--weights", "nowhere.safetensors"), "no weights at nowhere.safetensors"),
        (("--method", "topme", "--cost", "0.5"), "unknown method 'topme'"),
        (("--cost", "0.5", "--gmacs", "1"), "give one budget, not several"),
        (("--cost", "0.001"), "cannot be met"),
        (("--schedule", "nope"), "neither a preset"),
        (("--probe", "knn"), "--probe and --train go together"),
        (("--csv", "no/folder/rows.csv"), "no folder"),
        (("--limit", "0"), "limit must be at least 1"),
        (("--split", "train"), "--split train"),
    ],
)
def test_mistakes(folder: Path, tmp_path: Path, extra: tuple[str, ...], message: str) -> None:
    data = () if "--data" in extra else ("--data", str(folder))
    done = quickly("evaluate", "--model", "demo", *data, "--workers", "0", *extra, cwd=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_class_count_and_foreign_weights(folder: Path, tmp_path: Path) -> None:
    done = quickly("evaluate", "--model", "test_vit", "--data", str(folder),
                      "--weights", str(demo.WEIGHTS))  # fmt: skip
    assert done.returncode == 2
    assert "the weights in" in done.stderr
    assert "of shape" in done.stderr or "lack" in done.stderr
    evil = tmp_path / "evil.pth"
    evil.write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    done = quickly("evaluate", "--model", "test_vit", "--data", str(folder),
                      "--weights", str(evil), cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert evil.name in done.stderr
    assert "safetensors" in done.stderr
    assert not (tmp_path / "owned").exists()


def test_a_csv_of_other_columns_is_left_alone(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("a,b\n1,2\n")
    done = quickly("evaluate", "--model", "demo", "--data", str(folder), "--csv", str(target))
    assert done.returncode == 2
    assert "does not have the columns" in done.stderr
    assert target.read_text() == "a,b\n1,2\n"


def test_a_full_disk_keeps_the_rows_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zerotprune.measure import records

    target = tmp_path / "rows.csv"
    records.append(target, [{"name": "first"}])
    before = target.read_text()

    def full(self: object, rows: object) -> None:
        with target.open("a") as file:
            file.write("half a row")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv.DictWriter, "writerows", full)
    with pytest.raises(OSError, match=r"No space.*rows\.csv"):
        records.append(target, [{"name": "second"}])
    assert target.read_text() == before
    target.unlink()
    with pytest.raises(OSError, match="No space"):
        records.append(target, [{"name": "second"}])
    assert not target.exists()


def test_a_target_that_is_no_file_is_refused(folder: Path, tmp_path: Path) -> None:
    done = quickly("evaluate", "--model", "demo", "--data", str(folder), "--csv", str(tmp_path))
    assert done.returncode == 2
    assert tmp_path.name in done.stderr.replace("\n", "")


def test_a_probe_over_features(folder: Path) -> None:
    done = quickly("evaluate", "demo", str(folder), "--cost", "0.7", "--workers", "0",
                   "--probe", "knn", "--train", str(folder), "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain, pruned = rows_of(done.stdout)
    assert plain["measure"] == "knn"
    assert float(str(pruned["gmacs"])) < float(str(plain["gmacs"]))
