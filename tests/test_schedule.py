"""Stage and Schedule: validation, counts, JSON, presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotprune import Schedule, Stage

stages = st.builds(
    Stage,
    block=st.integers(1, 24),
    keep=st.floats(0.01, 1.0),
    similar=st.integers(0, 50),
    rounds=st.none() | st.integers(1, 50),
)
schedules = st.lists(stages, max_size=6, unique_by=lambda stage: stage.block).map(
    lambda stages: Schedule(tuple(stages))
)


@given(schedules)
def test_json_round_trip(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_file_round_trip_leaves_nothing_else(tmp_path: Path) -> None:
    schedule = Schedule.preset("ablation-is")
    schedule.save(tmp_path / "s.json")
    assert Schedule.load(tmp_path / "s.json") == schedule
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    Schedule().save(path)
    before = path.read_text()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        Schedule.preset("ablation-i").save(path)
    assert path.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


@given(st.integers(1, 999), st.integers(1, 2000))
def test_share_is_exact_for_the_written_decimal(thousandths: int, patches: int) -> None:
    stage = Stage(1, keep=thousandths / 1000)
    assert stage.share(patches) == thousandths * patches // 1000


def test_ablation_counts() -> None:
    patches, counts = 196, []
    for stage in Schedule.preset("ablation-is").stages:
        patches = stage.kept(patches)
        counts.append(patches)
    assert counts == [186, 158, 118, 75, 65]


def test_default_rounds_by_depth() -> None:
    votes = [Stage(block).votes(12) for block in range(1, 13)]
    assert votes == [30] * 3 + [5] * 6 + [1] * 3
    assert Stage(1, rounds=7).votes(12) == 7


def test_stages_are_put_in_order() -> None:
    assert [s.block for s in Schedule((Stage(9), Stage(3))).stages] == [3, 9]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"block": 0}, ValueError, "block must be at least 1, got 0"),
        ({"block": 1.5}, TypeError, "block must be a whole number, got 1.5"),
        ({"block": True}, TypeError, "whole number"),
        ({"block": 1, "similar": -1}, ValueError, "similar must be at least 0, got -1"),
        ({"block": 1, "similar": 2.5}, TypeError, "similar must be a whole number, got 2.5"),
        ({"block": 1, "rounds": 0}, ValueError, "rounds must be at least 1"),
        ({"block": 1, "keep": 0.0}, ValueError, r"keep must be in \(0, 1\], got 0.0"),
        ({"block": 1, "keep": 1.01}, ValueError, "keep must be in"),
        ({"block": 1, "keep": float("nan")}, ValueError, "keep must be in"),
        ({"block": 1, "keep": "0.5"}, TypeError, "keep must be a number"),
    ],
)
def test_bad_stages(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    text = json.dumps({"version": 1, "stages": [arguments]})
    with pytest.raises(error, match=message):
        Schedule.from_json(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "bad JSON"),
        ("[]", "exactly"),
        ('{"version": 4, "stages": []}', "version 4"),
        ('{"version": 2, "stages": []}', "exactly"),
        ('{"version": 1, "stages": [], "more": 1}', "exactly"),
        ('{"version": 1, "stages": 3}', "must be a list"),
        ('{"version": 1, "stages": [3]}', "must be a JSON object"),
        ('{"version": 1, "stages": [{"keep": 0.5}]}', 'needs a "block"'),
        ('{"version": 1, "stages": [{"block": 1, "kep": 0.5}]}', "unknown field 'kep'"),
        ('{"version": 1, "stages": [{"block": 1}, {"block": 1}]}', "two at block 1"),
    ],
)
def test_bad_json(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        Schedule.load(path)
    assert str(path) in str(caught.value)


def test_binary_file_is_no_schedule(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match="not a text file"):
        Schedule.load(path)


def test_unknown_preset_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"'fast'.*ablation-is"):
        Schedule.preset("fast")
