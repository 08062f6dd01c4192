"""How a command ends: one sentence and an exit code for whatever came, 130 for Ctrl-C, always."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..interrupts import INTERRUPTED, Interrupts

MISTAKE, BUG, CLOSED = 2, 1, 141
#: what users are told of in words; all else is a fault of ours
_MISTAKES = (ValueError, TypeError, OSError)


@contextmanager
def ending(interrupts: Interrupts) -> Iterator[None]:
    """Run a command inside; it ends by SystemExit, whatever happens."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files may be no text at all
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
        if interrupts.unanswered:  # swallowed just now, and nobody knows what was left out for it
            raise KeyboardInterrupt
        interrupts.over(0)
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # rich has its own way with it
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
        _say(text)
        if interrupts.came:
            interrupts.leave(code)
        sys.exit(code)


def _outcome(error: BaseException, interrupted: bool) -> tuple[int, str]:
    """The exit code, and the line to print on the error stream."""
    if interrupted:
        said = str(error) if isinstance(error, KeyboardInterrupt) else ""
        return INTERRUPTED, said or "stopped"
    if isinstance(error, BrokenPipeError):  # `zerotprune info … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED, ""
    if type(error).__module__.startswith("cyclopts") or isinstance(error, _MISTAKES):
        return MISTAKE, sentence(error)
    if _is_lack_of_memory(error):
        return MISTAKE, "not enough memory: try a smaller --batch, --size or model"
    name = type(error).__name__
    return BUG, f"{name}, a fault of this program; its traceback is in {_kept(error)}"


def _say(text: str) -> None:
    if not text:
        return
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
