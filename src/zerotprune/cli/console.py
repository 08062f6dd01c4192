"""The console, progress bars and tables of all commands, in one style.

Everything is printed as it is: in the name of a file, a model or a class, rich would take brackets
for markup and `:cat:` for an emoji.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..measure.records import surroundings
from ..safety.files import printable

_NAME_WIDTH = 12  # of a column that may be folded


def console_for(as_json: bool = False) -> Console:
    """Return a console on standard output, or on the error stream if JSON goes to the former."""
    file = sys.stderr if as_json else None
    return Console(file=file, markup=False, emoji=False, highlight=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table with all of its numbers. A terminal that is too narrow breaks the lines, where
    rich would leave out letters and digits, and at last the whole first column."""
    for column in table.columns:
        texts = "\n".join(map(str, (column.header, *column.cells)))
        widest = max(map(cell_len, texts.split("\n")))
        least = widest if column.no_wrap else min(widest, _NAME_WIDTH)
        column.min_width = max(least, column.min_width or 0)
    unlimited = console.options.update(max_width=10_000)
    width = max(console.width, Measurement.get(console, unlimited, table).minimum)
    Console(file=console.file, width=width, markup=False, emoji=False).print(table)


def print_path(console: Console, words: str, path: Path) -> None:
    """Print a line that ends with a path, which is never broken."""
    console.print(Text.assemble(f"{words}: ", (printable(str(path)), "bold")), soft_wrap=True)


@contextmanager
def showing(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done; yield a function that sets another text."""
    with console.status(Text(text)) as status:
        yield lambda line: status.update(Text(line))


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows for scripts, with command, commit, versions and hardware."""
    where = surroundings()
    print(json.dumps([{**where, **row} for row in rows], indent=2))


def progress_bar(console: Console, disable: bool = False) -> Progress:
    """Return a progress bar with description, counts, a note and the remaining time."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}", markup=False), TimeRemainingColumn())  # fmt: skip
    return Progress(*columns, console=console, transient=True, disable=disable)


def new_table(title: str, gap: int = 1) -> Table:
    """Return an empty table; the first column shrinks if needed."""
    return Table(title=printable(title), header_style="bold", box=SIMPLE_HEAD,
                 padding=(0, gap, 0, 0))  # fmt: skip


INCONCLUSIVE = "inconclusive"
INCONCLUSIVE_REMARK = (
    "Inconclusive: the speedup varies more from round to round (quartiles) than it differs from 1."
)


def speedup_cell(speedup: float | None, quartiles: tuple[float, float] | None) -> str:
    """Return the speedup, or its quartiles if rounds differ more than the two models do."""
    if speedup is None or quartiles is None:
        return ""
    low, high = quartiles
    if high - low > abs(speedup - 1):
        return f"{INCONCLUSIVE}\n({low:.2f}–{high:.2f})"  # a cell of 80 columns
    return f"{speedup:.2f}×"


@contextmanager
def counting_images(
    console: Console, description: str, total: int, world: int = 1, disable: bool = False
) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar over images; yield a function that sets their number so far, and a note.
    After Ctrl-C, say how many were done: images come class by class, so a part of them is no
    result.

    Args:
        console: Where to draw.
        description: In front of the bar.
        total: Images, in all processes together.
        world: Processes that share the images; this one has the most.
        disable: Draw nothing.
    """
    with progress_bar(console, disable) as progress:
        bar = progress.add_task(description, total=len(range(0, total, world)), note="")
        try:
            yield lambda count, note: progress.update(bar, completed=count, note=note)
        except KeyboardInterrupt:
            seen = int(progress.tasks[bar].completed) * world
            raise KeyboardInterrupt(
                f"stopped after {seen} of {total} images: no result, and no row was written"
            ) from None


def left_out(console: Console) -> Callable[[str], None]:
    """Return a function that prints what is left out, and why."""
    return lambda message: console.print(printable(f"left out: {message}"), style="yellow")
