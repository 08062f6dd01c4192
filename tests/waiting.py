"""Wait for another process, as long as it takes, within minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: seconds: a guard against hanging only, so that no test depends on how busy the machine is
GUARD = 600.0

Result = TypeVar("Result")


def wait_until(holds: Callable[[], Result], name: str, pause: float = 0.01) -> Result:
    """Return the first true result of `holds`; fail with `name` if there is none in time."""
    last = time.monotonic() + GUARD
    while time.monotonic() < last:
        if result := holds():
            return result
        time.sleep(pause)
    raise AssertionError(f"{name} did not come within {GUARD:.0f} s")
