"""Ctrl-C: one press ends a command, whatever it is doing, and leaves nothing half-written.

A command's life has three phases, and Ctrl-C means something else in each:

1. It starts: it imports and parses, and has done nothing yet. The process exits at once. (The first
   line of `cli.main` sees to that, before this module is imported.)
2. It runs: Ctrl-C raises KeyboardInterrupt, so that every `with` and `finally` cleans up.
3. It is over: there is only the exit left. The process exits at once, with the code it has, and
   after an interrupt it does so anyway.

In the second phase the exception can get lost. Extension modules clear errors while they are being
imported (Cython's do, when they register their types), Python drops what is raised in `__del__` or
in the callback of a weak reference, and some libraries catch everything. So from the first Ctrl-C
on, a timer looks ten times a second at which exception the main thread is handling. If it is a
KeyboardInterrupt, or was raised while one was being handled, then the command is cleaning up, and
is left alone. If not, somebody swallowed it, and it is raised again. This goes on until the command
is over: where an interrupt was lost, and how often, does not matter.

Code that means to go on after Ctrl-C, to report what is finished, calls `acknowledge`. Code that
must not be interrupted in its middle says so by `deferred`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # typing would take longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

INTERRUPTED = 130
_SECONDS_BETWEEN_LOOKS = 0.1
#: after that, whoever is handling the interrupt is not cleaning up but goes on with other work
_SECONDS_TO_CLEAN_UP = 15.0

_running: Interrupts | None = None


class Interrupts:
    """Ctrl-C in the life of one command, which begins when this is made. It stays ours until the
    process has ended."""

    def __init__(self) -> None:
        self.came = False
        self._unanswered = False  # it came, and nobody has ended the command for it
        self._since = 0.0
        self._hooks: tuple[Any, Any] | None = None
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        # The first to be registered is the last to be called: all that could wait has ended, and
        # what Python still takes apart must not change the exit code.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

    @property
    def unanswered(self) -> bool:
        return self._unanswered

    def running(self) -> None:
        """Raise an exception from now on."""
        global _running
        _running = self
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = self._quiet(sys.unraisablehook)
        threading.excepthook = self._quiet(threading.excepthook)
        signal.signal(signal.SIGINT, self._interrupt)

    def over(self, code: int) -> None:
        """Nothing can be interrupted any more: end with this code."""
        global _running
        _running = None
        self.acknowledge()
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
        if self._hooks is not None and not self.came:
            sys.unraisablehook, threading.excepthook = self._hooks

    def leave(self, code: int) -> NoReturn:
        """End the process now. Python itself would first take apart all that was imported, for
        seconds, and wait for threads; and where an extension module ran code that the interrupt
        left, it would die of the signal in the end."""
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody may be listening
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
        """Interrupt again if the interrupt was lost. By the signal: it may be deferred just now."""
        late = time.monotonic() - self._since > _SECONDS_TO_CLEAN_UP
        if self._unanswered and (late or not _is_handled()):
            signal.raise_signal(signal.SIGINT)

    def _quiet(self, hook: Callable[[Any], Any]) -> Callable[[Any], None]:
        """Print no errors of what was cut short: objects that are deleted half-made, threads that
        talk to workers which have ended."""

        def report(what: Any) -> None:
            if not self.came:
                hook(what)

        return report


def _is_handled() -> bool:
    """Whether this thread is in an `except`, a `finally` or a `with` that an interrupt has left."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def acknowledge() -> None:
    """Say in an `except KeyboardInterrupt` that the command is about to end, and will take its
    time: it reports what is finished. The interrupt is not raised again."""
    if _running is not None:
        _running.acknowledge()


class Deferral:
    """Ctrl-C that waits, in the context of `deferred`."""

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
        """Let Ctrl-C through in this context; one that waits comes at once."""
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
    """Make Ctrl-C wait until this is done: a transaction, or the start of a process.

    Whichever handler there was gets the signal then.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield Deferral(None)  # no interrupt comes here
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
    """Keep Ctrl-C from the processes that are started here, for good; the parent ends them.

    A terminal sends SIGINT to all of them. One that gets it while it imports torch would end in a
    page of traceback, or swallow it. It is blocked, which a child inherits; and it is deferred,
    because another thread of this process may take the signal that this one blocks.
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


def says_nothing(worker: int) -> None:
    """For a loader's worker, whose failures are values: what else fails in it is the thread that
    hands tensors to a parent that has gone."""
    del worker
    sys.excepthook = lambda *_: None
