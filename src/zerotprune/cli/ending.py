"""How a command ends: one sentence and an exit code for whatever came, 130 for Ctrl-C, always."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

MISTAKE, BUG, INTERRUPTED, CLOSED = 2, 1, 130, 141
#: what users are told of in words; all else is a fault of ours
_MISTAKES = (ValueError, TypeError, OSError)


class Interrupts:
    """Ctrl-C, from the first moment of a command's life to its last."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None
        self._told: Any = None
        self._shown: Any = None

    def __enter__(self) -> Interrupts:
        """Until the command runs nothing has been done: an end at once is the cleanest one. An
        exception would end in the middle of an import, where others make of it what they like."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        return self

    def running(self) -> None:
        """From now on it is an exception. It is remembered as well: some code swallows it."""
        if self._before is not None:
            self._told, sys.unraisablehook = sys.unraisablehook, self._swallowed
            self._shown, sys.excepthook = sys.excepthook, self._in_a_thread
            signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: object) -> NoReturn:
        self.came = True
        raise KeyboardInterrupt

    def _swallowed(self, what: Any) -> None:
        """In a weak reference's callback, or where an object is deleted, Python drops exceptions:
        an interrupt that fell there comes again a moment later."""
        if what.exc_type is KeyboardInterrupt:
            again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        elif not self.came:  # what was cut short may fail once more where it is cleared away
            self._told(what)

    def _in_a_thread(self, *error: Any) -> None:
        """The interrupt went to the workers too: threads that talk to them fail as they end."""
        if not self.came:
            self._shown(*error)

    def over(self) -> None:
        """What is done is done: nothing can be interrupted any more."""
        if self._before is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        """As it was, for whoever called; but a process that ends is not stopped on its way out, and
        says no more than that it was."""
        if self._before is not None:
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGINT, self._before)
        if self._told is not None and not self.came:
            sys.unraisablehook, sys.excepthook = self._told, self._shown


@contextmanager
def ending() -> Iterator[Interrupts]:
    """Run a command inside; it ends by SystemExit, whatever happens."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files may be no text at all
            stream.reconfigure(errors="backslashreplace")
    with Interrupts() as interrupts:
        try:
            yield interrupts
            sys.stdout.flush()
            interrupts.over()
        except SystemExit as stopped:
            if isinstance(stopped.__context__, BrokenPipeError):  # rich has its own way with it
                sys.exit(CLOSED)
            raise
        except BaseException as error:
            with suppress(KeyboardInterrupt):
                interrupts.over()
            if os.environ.get("ZEROTPRUNE_TRACEBACK") and not _interrupted(error, interrupts):
                raise
            sys.exit(_tell(error, interrupts))


def _interrupted(error: BaseException, interrupts: Interrupts) -> bool:
    return interrupts.came or isinstance(error, KeyboardInterrupt)


def _tell(error: BaseException, interrupts: Interrupts) -> int:
    """Say what it was on the error stream, in one line; the exit code."""
    if _interrupted(error, interrupts):
        said = str(error) if isinstance(error, KeyboardInterrupt) else ""
        _say(said or "stopped")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # `zerotprune info … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    if type(error).__module__.startswith("cyclopts") or isinstance(error, _MISTAKES):
        _say(sentence(error))
        return MISTAKE
    if _is_lack_of_memory(error):
        _say("there is not enough memory for that: try a smaller --batch, --size or model")
        return MISTAKE
    _say(f"{type(error).__name__}, a fault of this program; its traceback is in {_kept(error)}")
    return BUG


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody may be listening
        print(f"zerotprune: {text}", file=sys.stderr)


def sentence(error: BaseException) -> str:
    """What went wrong, on one line; an error of the system by its words, not by its number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        text = f"{named}{error.strerror}"
    return " ".join(text.split()) or type(error).__name__


def _is_lack_of_memory(error: BaseException) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "t allocate memory" in str(error))


def _kept(error: BaseException) -> str:
    """The file in which the traceback lies."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="zerotprune-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        traceback.print_exception(error, file=file)
    return file.name
