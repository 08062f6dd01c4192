"""Help texts that show the range of every number."""

from __future__ import annotations

from typing import Any

from cyclopts.help import DefaultFormatter
from rich.text import Text

from ..safety.ranges import RANGES


class RangeFormatter(DefaultFormatter):
    """cyclopts' formatter, with the range after the description of a number."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        for entry in panel.entries:
            names = [name.lstrip("-").replace("-", "_") for name in entry.names]
            ranges = [RANGES[name] for name in names if name in RANGES]
            if ranges and entry.metavar in ("INT", "FLOAT"):
                entry.description.append(Text(f"[{ranges[0]}]", "dim"))
        super().__call__(console, options, panel)
