"""Files that users name: read with one sentence for what is wrong, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def text_of(path: str | os.PathLike[str], kind: str) -> str:
    """The text of a file that should be a `kind`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a {kind}: it is not a text file") from None


def names_in(path: Path) -> list[str]:
    """The names of classes, one on each line of a file."""
    lines = (line.strip() for line in text_of(path, "list of names").splitlines())
    found = [line for line in lines if line]
    if not found:
        raise ValueError(f"{path} holds no names")
    return found


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path that takes the place of the file once all is written to it."""
    whole = Path(path)
    temporary = whole.with_name(f".{whole.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(whole)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Say at once, before any work is done, that no such file can be written."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to")
