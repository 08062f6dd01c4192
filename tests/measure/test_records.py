"""Rows of results: the file they are added to, and what they say about the machine."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest

from zerotprune.measure import records


@pytest.mark.parametrize("ending", ["\n", "", "\r\n"])
def test_rows_are_added_to_a_file_however_it_ends(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "rows.csv"
    records.append(path, [{"name": "first", "train_seconds": 7}])
    path.write_bytes(path.read_bytes().removesuffix(b"\n") + ending.encode())
    records.append(path, [{"name": "second"}])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["train_seconds"]) for row in rows] == [("first", "7"), ("second", "")]


def test_the_command_can_be_copied_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["evaluate", "demo", "my images/{0..3}.tar", "--cost", "0.6", "--csv", "a$b.csv"]
    monkeypatch.setattr("sys.argv", ["zerotprune", *arguments])
    command = str(records.surroundings()["command"])
    assert shlex.split(command)[-len(arguments) :] == arguments
    assert " --cost 0.6 " in command
