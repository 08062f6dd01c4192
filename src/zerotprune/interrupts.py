"""Ctrl-C is for one process: those that it starts do not see it, and are ended by it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Processes that are started meanwhile never get SIGINT, which a terminal sends to all of them.

    One that gets it while it imports torch would end in a page of traceback, or swallow it. To the
    parent itself it comes a moment later, when the context is left.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # when it starts, it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
