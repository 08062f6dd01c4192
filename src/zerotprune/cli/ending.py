"""End a command with one sentence and an exit code; always 130 after Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..safety.interrupts import INTERRUPTED, Interrupts

MISTAKE, BUG, CLOSED = 2, 1, 141
#: errors that users can cause; all others are bugs
_MISTAKES = (ValueError, TypeError, OSError)


@contextmanager
def ending(interrupts: Interrupts) -> Iterator[None]:
    """Run a command inside this context. It ends with SystemExit, whatever happens."""
    _replace_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # file names need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
        if interrupts.unanswered:  # swallowed by a library, so the work may be incomplete
            raise KeyboardInterrupt
        interrupts.over(0)
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # rich turns it into SystemExit
            stopped.code = CLOSED
        interrupts.over(stopped.code if isinstance(stopped.code, int) else BUG)
        raise
    except BaseException as error:
        interrupted = interrupts.came or isinstance(error, KeyboardInterrupt)
        if os.environ.get("ZEROTPRUNE_TRACEBACK") and not interrupted:
            interrupts.over(BUG)
            raise
        code, text = _outcome(error, interrupted)
        interrupts.over(code)
        _print_error(text)
        if interrupts.came:
            interrupts.leave(code)
        sys.exit(code)


def _replace_closed() -> None:
    """Open the null device for streams that are closed (`zerotprune … >&-`).

    Otherwise the next file that is opened takes their number, and gets what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _outcome(error: BaseException, interrupted: bool) -> tuple[int, str]:
    """Return the exit code and the line to print on the error stream."""
    if interrupted:
        text = str(error) if isinstance(error, KeyboardInterrupt) else ""
        return INTERRUPTED, text or "stopped"
    if isinstance(error, BrokenPipeError):  # `zerotprune info … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED, ""
    if type(error).__module__.startswith("cyclopts") or isinstance(error, _MISTAKES):
        return MISTAKE, sentence(error)
    if _is_lack_of_memory(error):
        return MISTAKE, "not enough memory: try a smaller --batch, --size or model"
    if _is_lost_decoder(error):
        return MISTAKE, (
            "a process that decodes images was killed, perhaps because memory ran out: try fewer "
            "--workers"
        )
    name = type(error).__name__
    return BUG, f"{name}: this is a bug; the traceback is in {_save_traceback(error)}"


def _print_error(text: str) -> None:
    if not text:
        return
    with suppress(OSError, ValueError):  # the stream may be closed
        print(f"zerotprune: {text}", file=sys.stderr)


def sentence(error: BaseException) -> str:
    """Return the message on one line: for an OSError its text without the number, for a value that
    a validator refused the option and the reason, for too many values the extra ones."""
    text = str(error)
    argument: Any = getattr(error, "argument", None)
    reason: Any = getattr(error, "exception_message", None)
    if type(error).__name__ == "UnusedCliTokensError":
        unused = " ".join(getattr(error, "unused_tokens", None) or ())
        text = f"unexpected argument {unused}: the options before it take fewer values"
    if argument is not None and reason:
        text = f"{argument.name}: {reason}"
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        text = f"{named}{error.strerror}"
    from ..safety.files import printable

    return printable(" ".join(text.split())) or type(error).__name__


def _is_lack_of_memory(error: BaseException) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "t allocate memory" in str(error))


def _is_lost_decoder(error: BaseException) -> bool:
    """Return whether a decoding process died. torch raises this in the main thread, wherever it
    is."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")


def _save_traceback(error: BaseException) -> str:
    """Write the traceback to a file and return its name."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="zerotprune-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        traceback.print_exception(error, file=file)
    return file.name
