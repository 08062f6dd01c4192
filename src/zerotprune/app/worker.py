"""The one thread that computes, for everybody in turn: nobody's work is in anybody's figures.

torch keeps a team of threads for each thread that calls it, and on two cores two teams halve the
speed. One core is left to the browser: where it takes theirs, 10 ms may become a second.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818  nothing went wrong
    """The page is being closed: there will be no result."""


class Worker:
    """Does one piece of work at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "worker", initializer=_leave_a_core)
        self._stopped = False

    def run(self, work: Callable[[], Result]) -> Result:
        """Wait for the result; what goes wrong is raised here."""
        try:
            return self._thread.submit(work).result()
        except (CancelledError, RuntimeError):
            if self._stopped:
                raise Stopped from None
            raise

    def stop(self) -> None:
        self._stopped = True
        self._thread.shutdown(cancel_futures=True)


def _leave_a_core() -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))
