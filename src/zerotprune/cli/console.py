"""What a command prints while it works: a console, progress bars, and tables of one look."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def console_for(json: bool = False) -> Console:
    """Where JSON goes to standard output, all else goes to the error stream."""
    return Console(file=sys.stderr if json else None)


def progress_bar(console: Console, disable: bool = False) -> Progress:
    """Tasks with a description, a bar, counts, a note and the time that is left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}"), TimeRemainingColumn())  # fmt: skip
    return Progress(*columns, console=console, transient=True, disable=disable)


def new_table(title: str, gap: int = 1) -> Table:
    """Narrow enough for 80 columns; what gives way there is the first column."""
    return Table(title=escape(title), header_style="bold", box=SIMPLE_HEAD, padding=(0, gap, 0, 0))


def cut_short(seen: int, total: int) -> KeyboardInterrupt:
    """What Ctrl-C comes to where images are measured: images come class by class, so that a part
    of them says nothing of the whole, and nothing is told or written of it."""
    return KeyboardInterrupt(f"stopped after {seen} of {total} images: no result, no row written")


def left_out(console: Console) -> Callable[[str], None]:
    """What is told of an image that cannot be read."""
    return lambda message: console.print(f"left out: {message}", style="yellow", markup=False)
