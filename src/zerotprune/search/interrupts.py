"""Ctrl-C at the right moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C waits until this is done.

    For whatever speaks to the storage: an interrupt in the middle of a transaction leaves it open,
    and the next one, of the very same process, would wait for it in vain.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no interrupt comes here
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *caught: came.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])
