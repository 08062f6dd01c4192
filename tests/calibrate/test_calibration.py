"""The calibration file: written and read, refused where it is wrong, applied to schedules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from zerotprune import Schedule, Stage, ZeroTPrune
from zerotprune.calibrate.calibration import Calibration
from zerotprune.data import demo
from zerotprune.data.fingerprint import fingerprint_model
from zerotprune.methods import Fold, ToMe

FINGERPRINT = {"name": "some_vit", "depth": 4, "heads": 3, "patches": 16, "weights": "ab" * 32}
SOME = Calibration(FINGERPRINT, (30, 10, 5, 1), (0.02, 1.5), {"threshold": 0.01},
                   {"quantiles": [0.5]}, {"trials": [[0.1, 1.0, 0.75]]},
                   {"command": "a [  b ]"})  # fmt: skip


def test_the_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    SOME.save(path)
    assert Calibration.load(path) == SOME
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]
    assert '"rounds": [30, 10, 5, 1]' in path.read_text()


def changed(**fields: object) -> str:
    return json.dumps(json.loads(SOME.to_json()) | fields)


MODEL = json.loads(SOME.to_json())["model"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "bad JSON"),
        ("[]", "is a JSON object"),
        (changed(version=2), "version 2 is unknown"),
        ('{"version": 1, "stages": []}', 'lacks "kl"'),
        (changed(extra=1), 'unknown "extra"'),
        (changed(rounds=[30, 10, 5]), "3 for 4 blocks"),
        (changed(rounds=[30, 10, 5, 0]), '"rounds" must be'),
        (changed(rounds=[30, 10, 5, True]), '"rounds" must be'),
        (changed(rounds="many"), '"rounds" must be'),
        (changed(vhf=[0.7, 0.01]), '"vhf" must be'),
        (changed(vhf=[0.01]), '"vhf" must be'),
        (changed(vhf=[0.01, float("nan")]), '"vhf" must be'),
        (changed(vhf=None), '"vhf" must be'),
        (changed(model={}), '"model" of a calibration'),
        (changed(model=MODEL | {"depth": "4"}), "depth must be a whole number"),
        (changed(model=MODEL | {"weights": None}), "weights must be a string"),
        (changed(kl=[]), '"kl" of a calibration'),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_bad_files_get_one_sentence(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"c\.json") as raised:
        Calibration.load(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_it_fills_in_rounds_that_are_open_and_the_range_of_zero_tprune_alone() -> None:
    schedule = Schedule((Stage(1, 0.9), Stage(2, 0.9, rounds=7), Stage(3, 0.9, 2)))
    got = SOME.applied(schedule.by(ZeroTPrune(heads="mean")))
    assert [stage.rounds for stage in got.stages] == [30, 7, 5]
    assert got.method == ZeroTPrune(heads="mean", vhf=(0.02, 1.5))
    assert [replace(stage, rounds=None) for stage in got.stages] == [
        replace(stage, rounds=None) for stage in schedule.stages
    ]
    for method in (ToMe(), ZeroTPrune(vhf=None)):
        assert SOME.applied(schedule.by(method)) == schedule.by(method)


def test_one_that_no_schedule_uses_is_refused() -> None:
    stages, unpruned = (Stage(1, similar=3),), Schedule()
    merging, plain = Schedule(stages, ToMe()), Schedule(stages, ZeroTPrune(vhf=None))
    used = SOME.applied_to([unpruned, merging, Schedule(stages)])
    assert used == [SOME.applied(unpruned), merging, SOME.applied(Schedule(stages))]
    for schedules, message in (
        ([unpruned], "nothing is pruned"),
        ([unpruned, merging], "is not used by tome"),
        ([merging, Schedule(stages, Fold())], "is not used by tome, fold"),
        ([plain], "is not used by zero-tprune"),
    ):
        with pytest.raises(ValueError, match=f"{message}.*--calibration"):
            SOME.applied_to(schedules)


def test_that_of_another_model_is_refused_by_its_weights_and_an_outline_has_none(
    tmp_path: Path,
) -> None:
    path, model = tmp_path / "c.json", demo.model()
    replace(SOME, model=fingerprint_model("demo", model), rounds=(1,) * 12).save(path)
    assert Calibration.load_for(path, "demo", model).rounds == (1,) * 12
    with torch.no_grad():
        next(iter(model.parameters())).flatten()[0] += 1e-6
    with pytest.raises(ValueError, match=r"another model.*weights"):
        Calibration.load_for(path, "demo", model)
    outline = model.to("meta")
    assert Calibration.load_for(path, "demo", outline).rounds == (1,) * 12
    with pytest.raises(ValueError, match=r"another model.*name demo .*other"):
        Calibration.load_for(path, "other", outline)
