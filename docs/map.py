"""Write docs/map.md, the map of the source, from the first line of every module.

Command: python docs/map.py (with --check it writes nothing and says whether the page is up to date)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "zerotprune"

HEAD = """# The map

Every module and what it is for: the first line of its docstring. `python docs/map.py` writes this
page, and a test compares it with the source. The root is the library; every folder is a socket
(`methods`, `backbones`) or a tool. Imports point down, from the command line to the library's own
modules; import-linter holds that.
"""


def first_line(path: Path) -> str:
    """The first sentence-like line of a module's docstring, as one line."""
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(said.partition("\n\n")[0].split())


def rooms() -> Iterator[tuple[str, list[Path]]]:
    """Every package, the library itself first, with its own modules."""
    for package in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        files = sorted(package.glob("*.py"), key=lambda path: (path.stem != "__init__", path.stem))
        yield package.relative_to(SOURCE.parent).as_posix(), files


def page() -> str:
    parts = [HEAD]
    for room, files in rooms():
        package, *modules = files if files[0].stem == "__init__" else [None, *files]
        said = "" if package is None else first_line(package)
        entries = [f"| `{path.name}` | {_cell(first_line(path))} |" for path in modules]
        table = ["| module | |", "|---|---|", *entries, ""] if entries else []
        parts.append("\n".join([f"## {room}", "", said, "", *table]))
    return "\n".join(parts).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    target, wanted = DOCS / "map.md", page()
    if "--check" not in sys.argv[1:]:
        target.write_text(wanted, "utf-8")
    elif not target.is_file() or target.read_text("utf-8") != wanted:
        sys.exit("docs/map.md is not what the source says: run python docs/map.py")


if __name__ == "__main__":
    main()
