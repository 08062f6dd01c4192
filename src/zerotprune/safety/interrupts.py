"""Ctrl-C: one press ends a command, whatever it is doing, and leaves nothing half-written.

A command has three phases, and Ctrl-C does something different in each:

1. It starts: it imports and parses, and has done nothing yet. The process exits at once. (The first
   line of `cli.main` arranges that, before this module is imported.)
2. It runs: Ctrl-C raises KeyboardInterrupt, so that every `with` and `finally` cleans up.
3. It is over: only the exit is left. The process exits at once, with the exit code that it has.

In the second phase the exception can get lost. Extension modules clear errors while they are being
imported (Cython's do, when they register their types), Python drops what is raised in `__del__` or
in the callback of a weak reference, and some libraries catch everything. So from the first Ctrl-C
on, a timer looks ten times a second at which exception the main thread is handling. If it is a
KeyboardInterrupt, or was raised while one was being handled, then the command is cleaning up and is
left alone. If not, the interrupt was swallowed, and it is raised again. This is repeated until the
command is over: it does not matter where an interrupt was lost, or how often.

Code that continues after Ctrl-C, to report what is finished, calls `acknowledge`. Code that must
not be interrupted halfway uses `deferred`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

INTERRUPTED = 130
_SECONDS_BETWEEN_LOOKS = 0.1
#: after this, the code that handles the interrupt is not cleaning up but doing other work
_SECONDS_TO_CLEAN_UP = 15.0

_running: Interrupts | None = None


class Interrupts:
    """Handles Ctrl-C for one command, from when this is created until the process has ended."""

    def __init__(self) -> None:
        self.came = False
        self._unanswered = False  # it came, and the command has not ended yet
        self._since = 0.0
        self._hooks: tuple[Any, Any] | None = None
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        # The first to be registered is the last to be called: nothing is left to wait for, and
        # what Python still tears down must not change the exit code.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

    @property
    def unanswered(self) -> bool:
        return self._unanswered

    def running(self) -> None:
        """Raise KeyboardInterrupt on Ctrl-C from now on."""
        global _running
        _running = self
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = self._quiet(sys.unraisablehook)
        threading.excepthook = self._quiet(threading.excepthook)
        signal.signal(signal.SIGINT, self._interrupt)

    def over(self, code: int) -> None:
        """Exit with this code if Ctrl-C comes from now on."""
        global _running
        _running = None
        self.acknowledge()
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
        if self._hooks is not None and not self.came:
            sys.unraisablehook, threading.excepthook = self._hooks

    def leave(self, code: int) -> NoReturn:
        """End the process now.

        Python would spend seconds on tearing down modules and wait for threads; and if the
        interrupt came while an extension module ran code, it would end by the signal.
        """
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the stream may be closed
                stream.flush()
        os._exit(code)

    def acknowledge(self) -> None:
        self._unanswered = False
        if self.came and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, *_: object) -> NoReturn:
        self.came = True
        if not self._unanswered:
            self._unanswered, self._since = True, time.monotonic()
            if hasattr(signal, "setitimer"):  # not on Windows
                signal.signal(signal.SIGALRM, self._look)
                signal.setitimer(signal.ITIMER_REAL, _SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_LOOKS)
        raise KeyboardInterrupt

    def _look(self, *_: object) -> None:
        """Send the signal again if the interrupt was lost; it may be deferred by now."""
        late = time.monotonic() - self._since > _SECONDS_TO_CLEAN_UP
        if self._unanswered and (late or not _is_handled()):
            signal.raise_signal(signal.SIGINT)

    def _quiet(self, hook: Callable[[Any], Any]) -> Callable[[Any], None]:
        """Silence errors after an interrupt: of half-made objects, and of threads without
        workers."""

        def report(what: Any) -> None:
            if not self.came:
                hook(what)

        return report


def _is_handled() -> bool:
    """Return whether this thread is in an `except`, `finally` or `with` because of an interrupt."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def acknowledge() -> None:
    """Stop raising the interrupt again. Call it in an `except KeyboardInterrupt`.

    The command is about to end, but first reports what is finished.
    """
    if _running is not None:
        _running.acknowledge()


class Deferral:
    """A Ctrl-C that waits until the end of a `deferred` context."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._came: list[tuple[Any, ...]] = []

    def note(self, *caught: Any) -> None:
        self._came.append(caught)

    def deliver(self) -> None:
        if self._came:
            caught, self._came = self._came[0], []
            self._handler(*caught)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let Ctrl-C through in this context; one that is waiting comes at once."""
        if self._handler is None:
            yield
            return
        signal.signal(signal.SIGINT, self._handler)
        try:
            self.deliver()
            yield
        finally:
            signal.signal(signal.SIGINT, self.note)


@contextmanager
def deferred() -> Iterator[Deferral]:
    """Delay Ctrl-C to the end of this context: a transaction, or the start of a process.

    The previous handler gets the signal then.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield Deferral(None)  # interrupts do not arrive here
        return
    deferral = Deferral(handler)
    signal.signal(signal.SIGINT, deferral.note)
    try:
        yield deferral
    finally:
        signal.signal(signal.SIGINT, handler)
        deferral.deliver()


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Block Ctrl-C for good in processes that are started in this context; the parent ends them.

    A terminal sends SIGINT to all of them. A process that is importing torch would print a
    traceback, or swallow it. So it is blocked, which a child inherits; and it is deferred, because
    another thread of this process may receive the signal that this thread blocks.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    with deferred():
        resource_tracker.ensure_running()  # when it starts, it unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def silence_worker(worker: int) -> None:
    """Silence a data loader's worker, which returns its failures as values.

    Only the thread that sends tensors may fail otherwise, if the parent has ended.
    """
    del worker
    sys.excepthook = lambda *_: None
