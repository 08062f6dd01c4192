"""Ctrl-C while processes are started: it waits until all of them are known."""

from __future__ import annotations

import signal
import threading

import pytest

from zerotprune.interrupts import kept_from_children


def test_it_waits_though_another_thread_takes_the_signal() -> None:
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
