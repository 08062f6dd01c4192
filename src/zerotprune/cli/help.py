"""The help of a command, with the range of each number beside it."""

from __future__ import annotations

from typing import Any

from cyclopts.help import DefaultFormatter
from rich.text import Text

from ..ranges import RANGES


class RangeFormatter(DefaultFormatter):
    """cyclopts' own, and one remark more."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        for entry in panel.entries:
            held = (RANGES.get(name.lstrip("-").replace("-", "_")) for name in entry.names)
            found = next((each for each in held if each is not None), None)
            if found is not None and entry.metavar in ("INT", "FLOAT"):
                entry.description.append(Text(f"[{found}]", "dim"))
        super().__call__(console, options, panel)
