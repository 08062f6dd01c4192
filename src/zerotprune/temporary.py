"""Private folders for what a process needs while it runs; a killed one's is cleared by the next.

A folder has a file that its process holds a lock on. The system lets go of the lock when the
process ends, however it ends: a folder whose lock can be had has no owner any more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # no such locks there: nothing is cleared
    fcntl = None  # type: ignore[assignment]

_PREFIX, _OWNER = "zerotprune-", ".owner"


@contextmanager
def private_folder() -> Iterator[Path]:
    """One that is gone afterwards; first, those are cleared whose processes were killed."""
    _clear()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        Path(folder, f"{_OWNER}.new").open("w") as file,
    ):
        _lock(file)
        # It gets its name only now that it is locked: nobody sees it without an owner.
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


def _clear() -> None:
    for mark in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            with mark.open("r+") as file:
                if _lock(file):
                    shutil.rmtree(mark.parent, ignore_errors=True)
        except OSError:  # another user's, or gone by now
            continue
