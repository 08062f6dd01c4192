"""What commands print: a console, progress bars, and tables in one style."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..measure.records import surroundings


def console_for(as_json: bool = False) -> Console:
    """Return a console on standard output, or on the error stream if JSON goes to the former."""
    return Console(file=sys.stderr if as_json else None)


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows with all that makes them again, for scripts."""
    print(json.dumps([{**surroundings(), **row} for row in rows], indent=2))


def progress_bar(console: Console, disable: bool = False) -> Progress:
    """Return a progress bar with description, counts, a note and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}"), TimeRemainingColumn())  # fmt: skip
    return Progress(*columns, console=console, transient=True, disable=disable)


def new_table(title: str, gap: int = 1) -> Table:
    """Return an empty table that fits 80 columns; the first column gives way."""
    return Table(title=escape(title), header_style="bold", box=SIMPLE_HEAD, padding=(0, gap, 0, 0))


INCONCLUSIVE = "inconclusive"
INCONCLUSIVE_REMARK = (
    "Inconclusive: the speed-up varies more from round to round (quartiles) than it differs from 1."
)


def speedup_cell(speedup: float | None, quartiles: tuple[float, float] | None) -> str:
    """Return the speed-up, or its quartiles if rounds differ more than the two models do."""
    if speedup is None or quartiles is None:
        return ""
    low, high = quartiles
    if high - low > abs(speedup - 1):
        return f"{INCONCLUSIVE}\n({low:.2f}–{high:.2f})"  # a cell of 80 columns
    return f"{speedup:.2f}×"


def cut_short(seen: int, total: int) -> KeyboardInterrupt:
    """Return what to raise after Ctrl-C: images come class by class, so a part is no result."""
    return KeyboardInterrupt(f"stopped after {seen} of {total} images: no result, no row written")


def left_out(console: Console) -> Callable[[str], None]:
    """Return a function that says what is left out, and why."""
    return lambda message: console.print(
        f"left out: {message}", style="yellow", markup=False, highlight=False
    )
