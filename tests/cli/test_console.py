"""The console prints names as they are: no markup, no emoji, no colors of the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from zerotprune.cli import console as ours
from zerotprune.cli.bench import speed_table
from zerotprune.clock import Timings
from zerotprune.measure.accuracy import Contender
from zerotprune.measure.speed import Entrant, Group, Speed

ODD = "[/b][red]:cat:{x}$y$"


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the console of all commands write colors into a string, as to a terminal."""

    def to_string(**options: Any) -> Console:
        file = options.pop("file") or io.StringIO()
        return Console(**{"width": 60, "force_terminal": True} | options, file=file)

    monkeypatch.setattr(ours, "Console", to_string)
    return ours.console_for()


def test_names_are_printed_as_they_are(console: Any) -> None:
    ours.left_out(console)(f"{ODD} one\x1b[31m")
    ours.print_path(console, "written", Path(f"{ODD} two\x1b[31m"))
    with ours.showing(console, f"{ODD} three") as show:
        show(f"{ODD} four")
    with ours.counting_images(console, f"{ODD} five", 3) as count:
        count(1, f"{ODD} six")
    failed = Speed(Entrant(Contender(f"{ODD} seven"), 1.0, 1.0), "eager", 1, "float32", Timings(),
                   failure=f"{ODD} eight")  # fmt: skip
    console.width = 200
    ours.print_table(console, speed_table(Group([failed]), f"{ODD} nine\x1b[31m", "cores", {}))
    printed = console.file.getvalue()
    for number in ("one", "two", "five", "six", "seven", "eight", "nine"):
        assert f"{ODD} {number}" in printed, number
    assert f"{ODD} three" in printed or f"{ODD} four" in printed
    assert "\x1b[31m" not in printed


def test_a_table_is_whole_on_a_narrow_terminal(console: Any) -> None:
    table = ours.new_table("title")
    table.add_column("method", overflow="fold")
    for column in ("GMACs", "top-1 %", "change", "top-5 %", "speedup (quartiles)"):
        table.add_column(column, justify="right", no_wrap=True)
    cells = ["tome", "0.354", "99.25", "+0.00 ± 0.00", "100.00", "1.40× (1.38–1.42)"]
    table.add_row(*cells)
    console.width = 30
    ours.print_table(console, table)
    printed = console.file.getvalue()
    assert all(cell in printed for cell in cells)
    assert "speedup (quartiles)" in printed
