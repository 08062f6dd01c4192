"""`zerotprune calibrate` as a user types it, and the commands that use what it wrote."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.test_evaluate import folder
from tests.commands import quickly, zerotprune
from zerotprune import Schedule, Stage
from zerotprune.calibrate.calibration import Calibration
from zerotprune.calibrate.survey import ROUNDS
from zerotprune.calibrate.vhf import DEFAULT_VHF
from zerotprune.data import demo
from zerotprune.data.fingerprint import fingerprint_model

digits = folder  # a fixture: images in class folders


@pytest.fixture(scope="module")
def calibrated(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the command once, for its calibration and its figures."""
    home = tmp_path_factory.mktemp("calibrated")
    done = zerotprune("calibrate", "--model", "demo", "--data", str(digits), "--workers", "0",
                      "--limit", "12", "--evaluations", "6", "--out", str(home / "c.json"),
                      "--figures", str(home))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the paper's rounds" in done.stdout
    assert "VHF range:" in done.stdout
    return home


def test_calibrate_writes_a_calibration_and_three_figures(calibrated: Path) -> None:
    names = ["c.json", "kl-by-block.png", "score-distributions.png", "vhf-ranges.png"]
    assert sorted(path.name for path in calibrated.iterdir()) == names
    for name in names[1:]:
        assert (calibrated / name).read_bytes().startswith(b"\x89PNG")
    calibration = Calibration.load(calibrated / "c.json")
    assert calibration.model == fingerprint_model("demo", demo.model())
    assert set(calibration.rounds) <= set(ROUNDS)
    assert calibration.provenance["images"] == 12
    assert calibration.provenance["seed"] == 0
    assert calibration.search["searched_on"] == calibration.search["judged_on"] == 6
    assert len(calibration.search["trials"]) == 6
    assert calibration.search["trials"][0][:2] == list(DEFAULT_VHF)
    assert calibration.vhf == DEFAULT_VHF  # six images can show nothing
    blocks = calibration.kl["blocks"]
    assert [row["needed"] for row in blocks] == list(calibration.rounds)
    for row in blocks:
        assert row["kl"]["1"][0] > row["kl"]["30"][0] >= 0
        assert row["kl"]["1"][1] > 0
    assert [len(block) for block in calibration.variances["blocks"]] == [
        calibration.model["heads"]
    ] * len(blocks)


def test_without_labels_the_search_goes_by_the_outputs(digits: Path, tmp_path: Path) -> None:
    values, flat = [], tmp_path / "flat"
    flat.mkdir()
    for image in sorted(digits.rglob("*.png"))[:6]:
        shutil.copy(image, flat)
    for name in ("a.json", "b.json"):
        done = quickly("calibrate", "--model", "demo", "--data", str(flat), "--workers", "0",
                        "--evaluations", "3", "--no-labels", "--seed", "5",
                        "--out", str(tmp_path / name))  # fmt: skip
        assert done.returncode == 0, done.stderr
        calibration = Calibration.load(tmp_path / name)
        values.append(
            (
                calibration.rounds,
                calibration.vhf,
                calibration.kl,
                calibration.variances,
                calibration.search,
            )
        )
    assert values[0] == values[1]
    assert values[0][4]["objective"].startswith("-KL")
    assert all(value < 0 for *_, value in values[0][4]["trials"])


def test_evaluate_compare_and_info_use_it(calibrated: Path, digits: Path, tmp_path: Path) -> None:
    calibration = Calibration.load(calibrated / "c.json")
    path = str(tmp_path / "c.json")
    replace(calibration, rounds=(17, *calibration.rounds[1:]), vhf=(0.25, 1.75)).save(path)
    Schedule((Stage(1, 0.8), Stage(3, 0.8, rounds=2))).save(tmp_path / "s.json")
    use = ("--schedule", str(tmp_path / "s.json"), "--calibration", path)
    data = ("--model", "demo", "--data", str(digits), "--workers", "0", "--limit", "4")
    done = quickly("evaluate", *data, "--json", "--precision", "bfloat16", *use)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)[1]
    assert '"vhf": [0.25, 1.75]' in row["method"]
    assert [stage["rounds"] for stage in json.loads(row["schedule"])["stages"]] == [17, 2]
    done = quickly("compare", *data, "--cost", "0.7", "--method", "zero-tprune",
                    "--calibration", path, "--csv", str(tmp_path / "rows.csv"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '""vhf"": [0.25, 1.75]' in (tmp_path / "rows.csv").read_text()
    shown = quickly("info", "demo", *use)
    assert shown.returncode == 0, shown.stderr
    assert "17 rounds" in shown.stdout
    assert "2 rounds" in shown.stdout
    assert "from 0.25 to 1.75" in shown.stdout


def test_that_of_another_model_is_refused(calibrated: Path, digits: Path, tmp_path: Path) -> None:
    calibration = Calibration.load(calibrated / "c.json")
    path = tmp_path / "c.json"
    replace(calibration, model={**calibration.model, "weights": "0" * 64}).save(path)
    for command in ("evaluate", "compare"):
        done = quickly(command, "--model", "demo", "--data", str(digits),
                        "--calibration", str(path))  # fmt: skip
        assert done.returncode == 2
        assert "another model: weights 000000000000…" in done.stderr
    done = quickly("info", "demo", "--calibration", str(path))
    assert done.returncode == 2
    assert "another model: weights 000000000000…" in done.stderr
    done = quickly("info", "test_vit", "--calibration", str(calibrated / "c.json"))
    assert done.returncode == 2
    assert re.search("another model.*demo .*test_vit", done.stderr), done.stderr
    done = quickly("info", "demo", "--calibration", "nowhere.json")
    assert done.returncode == 2
    assert "no calibration at nowhere.json" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--out", "no/folder/c.json", "no folder"),
        ("--out", ".", "is a folder"),
        ("--figures", "nowhere", "no folder nowhere"),
        ("--threshold", "0", "threshold must be above 0"),
        ("--evaluations", "-1", "evaluations must be at least 0"),
        ("--schedule", "nope", "neither a preset"),
        ("--schedule", "zero-tp-c", "no stage of the schedule has keep below 1"),
        ("--limit", "1", "at least two images"),
        ("--data", "no/such/folder", "no data at"),
    ],
)
def test_mistakes(option: str, value: str, message: str, digits: Path, tmp_path: Path) -> None:
    options = {"--data": str(digits), "--out": "c.json"} | {option: value}
    words = [word for pair in options.items() for word in pair]
    done = quickly("calibrate", "--model", "demo", "--workers", "0", *words, cwd=tmp_path)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_without_a_search_is_refused(digits: Path, tmp_path: Path) -> None:
    done = quickly("calibrate", "demo", str(digits), "--evaluations", "0", "--schedule",
                   "vhf-search", "--out", "c.json", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "--evaluations" in done.stderr


def test_one_that_nothing_uses_is_refused(calibrated: Path, digits: Path) -> None:
    use = ("--calibration", str(calibrated / "c.json"))
    data = ("--model", "demo", "--data", str(digits), "--limit", "4")
    for call, message in (
        (("evaluate", *data, "--cost", "0.7"), "is not used by fold"),
        (("info", "demo", "--cost", "0.7", "--method", "tome"), "is not used by tome"),
        (("search", *data, "--cost", "0.7", "--method", "tome"), "is not used by tome"),
    ):
        done = quickly(*call, *use)
        assert done.returncode == 2, done
        assert f"{message}: leave --calibration out" in done.stderr
