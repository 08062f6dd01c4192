"""Files that users name: read with one sentence for what is wrong, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: bytes of a text that is read at once: what we write ourselves is far below
MOST_TEXT = 64 * 2**20


def bytes_of(path: Path, offset: int = 0, size: int = -1) -> bytes:
    """From a regular file: a FIFO would wait for ever, a device may have no end."""
    _check_regular(path)
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def text_of(path: str | os.PathLike[str], kind: str) -> str:
    """The text of a file that should be a `kind`."""
    _check_regular(Path(path))
    if Path(path).stat().st_size > MOST_TEXT:
        raise ValueError(f"{path} is not a {kind}: it has more than {MOST_TEXT // 2**20} MB")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a {kind}: it is not a text file") from None


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        what = "a folder" if path.is_dir() else "no regular file"
        raise OSError(f"{path} is {what}, and cannot be read as a file")


def parsed(text: str | bytes) -> Any:
    """What a JSON says, from a stranger: ValueError for whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("bad JSON (it is nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"bad JSON ({error})") from None


def names_in(path: Path) -> list[str]:
    """The names of classes, one on each line of a file."""
    lines = (line.strip() for line in text_of(path, "list of names").splitlines())
    found = [printable(line) for line in lines if line]
    if not found:
        raise ValueError(f"{path} holds no names")
    return found


def printable(text: str) -> str:
    """A name from outside as a terminal, an SVG and a UTF-8 file can take it.

    >>> printable("a\\x1b[31m.png")
    'a\\ufffd[31m.png'
    """
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path that takes the place of the file once all is written to it.

    The file that a link points to is replaced, not the link; it keeps its mode. What is no regular
    file is never replaced.
    """
    whole = Path(os.path.realpath(path))
    check_writable(Path(path))
    temporary = whole.with_name(f".zerotprune-{uuid.uuid4().hex[:12]}.tmp")
    try:
        mode = stat.S_IMODE(whole.stat().st_mode) if whole.exists() else None
        if mode is not None:  # from the start: what is private is so while it is written, too
            temporary.touch()
            temporary.chmod(mode)
        yield temporary
        if mode is not None:  # whoever wrote it may have put another file there
            temporary.chmod(mode)
        temporary.replace(whole)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Say at once, before any work is done, that no such file can be written."""
    whole = Path(os.path.realpath(path))
    try:
        mode = whole.lstat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder: give the name of a file")
    if mode is not None and not stat.S_ISREG(mode):
        raise ValueError(f"{path} is no regular file, and is not written over: give another name")
    if not whole.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to")
    if not os.access(whole.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"nothing can be written to the folder {path.parent}")
    if mode is not None and not os.access(whole, os.W_OK):
        raise PermissionError(f"{path} is read-only: give another name")


def check_apart(read: Mapping[str, Path], written: Mapping[str, Path]) -> None:
    """Refuse to write a file that the same call reads, or writes another thing to.

    Each path comes with the name that the user knows it by. Hard links and symbolic links to one
    file are one file.
    """
    earlier = dict(read)
    for name, path in written.items():
        for other, held in earlier.items():
            if same_file(path, held):
                raise ValueError(f"{name} and {other} are one file, {path}: give another name")
        earlier[name] = path


def same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there yet
        return os.path.realpath(one) == os.path.realpath(other)
