"""Ctrl-C: it ends a command wherever it was swallowed, spares clean-up, and can be deferred."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from zerotprune.safety.interrupts import deferred, kept_from_children

Run = Callable[[str], tuple[int, str, str]]
COMMAND = """
import os, signal, sys, time, weakref
from zerotprune.safety import interrupts
from zerotprune.cli.ending import ending

def press():
    os.kill(os.getpid(), signal.SIGINT)

ours = interrupts.Interrupts()
with ending(ours):
    ours.running()
{body}
"""
FOREVER = "time.sleep(600)"
#: each presses Ctrl-C, and goes on as if nothing had been
SWALLOWERS = {
    "catches everything": """
try:
    press()
except BaseException:
    pass
""",
    "catches everything, many times": """
for _ in range(5):
    try:
        press()
        time.sleep(600)
    except BaseException:
        pass
""",
    "takes it for a missing library": """
try:
    try:
        press()
    except KeyboardInterrupt:
        raise ImportError from None
except ImportError:
    pass
""",
    "a weak reference's callback": """
class Watched: pass
watched = Watched()
reference = weakref.ref(watched, lambda _: press())
del watched
""",
    "a finalizer": """
class Finalized:
    def __del__(self): press()
Finalized()
""",
    "an extension module that is imported": """
import abc
register = abc.ABCMeta.register
def interrupted(*arguments):
    abc.ABCMeta.register = register
    press()
abc.ABCMeta.register = interrupted
import scipy._cyutility
""",
    "a handler that goes on with other work": f"""
interrupts._SECONDS_TO_CLEAN_UP = 0.3
try:
    press()
except BaseException:
    {FOREVER}
""",
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run by `python -m`; return the exit code and the output. The limit guards against hanging."""

    def run(body: str) -> tuple[int, str, str]:
        indented = "\n".join(f"    {line}" for line in body.splitlines())
        (tmp_path / "command.py").write_text(COMMAND.format(body=indented))
        done = subprocess.run(
            [sys.executable, "-m", "command"], cwd=tmp_path, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("name", SWALLOWERS)
def test_one_that_was_swallowed_comes_again(name: str, run: Run) -> None:
    assert run(SWALLOWERS[name] + FOREVER) == (130, "", "zerotprune: stopped\n")


def test_one_that_was_swallowed_at_the_very_end_counts(run: Run) -> None:
    assert run(SWALLOWERS["catches everything"]) == (130, "", "zerotprune: stopped\n")


def test_what_cleans_up_is_left_alone(run: Run) -> None:
    body = """
try:
    press()
finally:
    time.sleep(0.5)
    try:
        int("x")
    except ValueError:
        time.sleep(0.5)
    print("clean")
"""
    assert run(body) == (130, "clean\n", "zerotprune: stopped\n")


def test_what_has_acknowledged_it_may_go_on_until_the_next(run: Run) -> None:
    body = """
try:
    press()
except KeyboardInterrupt:
    interrupts.acknowledge()
time.sleep(0.5)
print("a report")
press()
print("never here")
"""
    assert run(body) == (130, "a report\n", "zerotprune: stopped\n")


def test_before_a_command_runs_and_when_it_is_over_the_process_ends_at_once(run: Run) -> None:
    assert run("ours.__init__(); press()") == (130, "", "")
    assert run("ours.over(3); press()") == (3, "", "")


def test_code_that_an_extension_module_runs_does_not_change_the_exit_code(run: Run) -> None:
    """Python records an interrupt that leaves such code, and dies of SIGINT when it ends."""
    body = """
import ctypes
ctypes.pythonapi.PyRun_SimpleString(b"import os; os.kill(os.getpid(), 2)")
"""
    code, _, output = run(body + FOREVER)
    assert (code, output.splitlines()[-1]) == (130, "zerotprune: stopped")


def test_it_waits_where_it_is_deferred() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("went on")
        steps.append("never here")
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_not_lost_to_an_error_where_it_is_deferred() -> None:
    with pytest.raises(KeyboardInterrupt), deferred():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_through_where_deferral_is_lifted() -> None:
    steps = []
    with deferred() as deferral:
        with deferral.lifted():
            steps.append("nothing waited")
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("it waits")
        with pytest.raises(KeyboardInterrupt), deferral.lifted():
            steps.append("never here")
        with pytest.raises(KeyboardInterrupt), deferral.lifted():  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("never here")
        steps.append("nothing waits")
    assert steps == ["nothing waited", "it waits", "nothing waits"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_not_raised_again_where_it_is_deferred(run: Run) -> None:
    body = (
        SWALLOWERS["catches everything"]
        + """
with interrupts.deferred():
    time.sleep(0.5)
    print("whole")
print("never here")
"""
    )
    assert run(body) == (130, "whole\n", "zerotprune: stopped\n")


def test_processes_start_first_though_another_thread_takes_the_signal() -> None:
    begun, done = threading.Event(), []

    def takes_it() -> None:
        begun.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    other = threading.Thread(target=takes_it)
    other.start()  # before: it would inherit that the signal is blocked
    with pytest.raises(KeyboardInterrupt), kept_from_children():  # noqa: PT012
        begun.set()
        other.join()
        done.append("the start")
    assert done == ["the start"]


def test_without_one_all_is_as_before() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with kept_from_children():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
