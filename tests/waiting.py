"""Waiting for what another process does: as long as it takes, within minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: seconds; ten minutes only guard against hanging, so that no test depends on how busy a machine is
GUARD = 600.0

Found = TypeVar("Found")


def wait_until(holds: Callable[[], Found], what: str, pause: float = 0.01) -> Found:
    """The first answer that is true. `what` says what was waited for, should it never come."""
    last = time.monotonic() + GUARD
    while time.monotonic() < last:
        if found := holds():
            return found
        time.sleep(pause)
    raise AssertionError(f"waited {GUARD:.0f} s in vain for {what}")
