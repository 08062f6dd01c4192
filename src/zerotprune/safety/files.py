"""Files that users name: errors in one sentence, atomic writing, private temporary folders.

A private folder has a file on which its process holds a lock. The system releases the lock when the
process ends, however it ends, so a folder whose lock is free was left behind and can be removed.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has no such locks: no folders are removed
    fcntl = None  # type: ignore[assignment]

#: bytes; the texts that we write are far smaller
MOST_TEXT = 64 * 2**20
_PREFIX, _OWNER = "zerotprune-", ".owner"  # of private folders


def bytes_of(path: Path, offset: int = 0, size: int = -1) -> bytes:
    """Read a regular file. Reading a FIFO could block forever, and a device may have no end."""
    _check_regular(path)
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def text_of(path: str | os.PathLike[str], kind: str) -> str:
    """Read a text file that should be a `kind`."""
    _check_regular(Path(path))
    if Path(path).stat().st_size > MOST_TEXT:
        raise ValueError(f"{path} is not a {kind}: it is larger than {MOST_TEXT // 2**20} MB")
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors write a mark first
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a {kind}: it is not a text file") from None


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise OSError(f"expected a regular file, but {path} is {kind}")


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON; raise ValueError if it is invalid in any way."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("bad JSON (it is nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"bad JSON ({error})") from None


def names_in(path: Path) -> list[str]:
    """Read class names, one per line."""
    lines = (line.strip() for line in text_of(path, "list of names").splitlines())
    names = [printable(line) for line in lines if line]
    if not names:
        raise ValueError(f"{path} has no names")
    return names


def printable(text: str) -> str:
    """Replace what a terminal, an SVG or a UTF-8 file cannot show.

    >>> printable("a\\x1b[31m.png")
    'a\\ufffd[31m.png'
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces the file at the end, if nothing was raised.

    If the path is a link, its target is replaced. The file keeps its mode. Only regular files are
    replaced. An error of writing names the file.
    """
    target = Path(os.path.realpath(path))
    check_writable(Path(path))
    temporary = target.with_name(f".zerotprune-{uuid.uuid4().hex[:12]}.tmp")
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None:  # from the start: a private file is private while it is written
            temporary.touch()
            temporary.chmod(mode)
        yield temporary
        if mode is not None:  # the writer may have created another file
            temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        raise naming(error, path, instead_of=temporary) from None
    finally:
        temporary.unlink(missing_ok=True)


def naming(error: OSError, path: str | os.PathLike[str], instead_of: Path | None = None) -> OSError:
    """Return an error of writing that names the file: a full disk's names none.

    Args:
        error: What was raised.
        path: The file that the user named.
        instead_of: A file of ours, which means nothing to the user.
    """
    if error.filename not in (None, os.fspath(instead_of or path)):
        return error
    if error.errno is None:  # a library's own
        return OSError(f"{path} cannot be written: {error}")
    return OSError(error.errno, error.strerror, os.fspath(path))


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder: give the name of a file")
    if mode is not None and not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a regular file and is not overwritten: give another name")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {path.parent} is not writable")
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(f"{path} is read-only: give another name")


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end; first remove those of killed processes."""
    _remove_abandoned()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        Path(folder, f"{_OWNER}.new").open("w") as file,
    ):
        _lock(file)
        # It gets its name once it is locked, so that no other process sees it unlocked.
        Path(file.name).rename(Path(folder, _OWNER))
        yield Path(folder)


def _lock(file: IO[str]) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_abandoned() -> None:
    for mark in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            with mark.open("r+") as file:
                if _lock(file):
                    shutil.rmtree(mark.parent, ignore_errors=True)
        except OSError:  # another user's, or removed by now
            continue
