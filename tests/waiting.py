"""Wait for another process, as long as it takes, within minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: seconds: a guard against hanging only, so that no test depends on how busy the machine is
GUARD = 600.0

Found = TypeVar("Found")


def wait_until(holds: Callable[[], Found], what: str, pause: float = 0.01) -> Found:
    """Return the first result of `holds` that is true; name `what` if there is none in time."""
    last = time.monotonic() + GUARD
    while time.monotonic() < last:
        if found := holds():
            return found
        time.sleep(pause)
    raise AssertionError(f"{what} did not come within {GUARD:.0f} s")
