"""Ctrl-C is for one process: those that it starts do not see it, and are ended by it."""

from __future__ import annotations

import signal
import sys
import threading
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
        with _held_back():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _held_back() -> Iterator[None]:
    """Another thread may take the signal that this one blocks, and Python would still raise here:
    in the middle of a start, with a child that nobody knows yet."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    handler = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def says_nothing(worker: int) -> None:
    """For a loader's worker, whose failures are values: what else fails in it is the thread that
    hands tensors to a parent that has gone."""
    del worker
    sys.excepthook = lambda *_: None
