"""The quickstart lists every command, and columns that the commands print."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from tests.docs.blocks import ROOT
from tests.families import plain_geometry
from zerotprune import Schedule
from zerotprune.cli import COMMANDS
from zerotprune.cli.evaluation import accuracy_table
from zerotprune.clock import Timings
from zerotprune.measure.accuracy import Contender, Result
from zerotprune.plan import Plan

PAGE = (ROOT / "docs" / "quickstart.md").read_text("utf-8")


def test_every_command_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert sorted(listed) == sorted(COMMANDS)


def test_the_demos_columns_are_printed() -> None:
    plan = Plan(Schedule(), plain_geometry(4, 4, 1, 64))
    taken = Timings([1.0])
    result = Result(Contender("unpruned"), plan, hits=[1], hits5=[1], seconds_per_image=taken)
    evaluation = cast(
        Any, SimpleNamespace(probe=None, model_name="demo", setting=SimpleNamespace(timed=True))
    )
    printed = [str(column.header) for column in accuracy_table(evaluation, [result]).columns]
    (header,) = re.findall(r"^\| method \|.*$", PAGE, re.M)
    for column in header.strip("| ").split(" | "):
        assert any(line.startswith(column) for line in printed), column
