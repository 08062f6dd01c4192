"""The page as its command serves it, in a process of its own."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.commands import MAIN
from tests.nursery import nursery
from tests.waiting import GUARD, wait_until


@contextmanager
def serving(temporary: Path, before: str = "") -> Iterator[int]:
    """Yield the port of a server whose temporary files go into a separate folder.

    `before` is Python for the process to run first.
    """
    port = free_port()
    code = f"import tempfile; tempfile.tempdir = {str(temporary)!r}\n{before}\n{MAIN}"
    child = nursery().start(code, "app", "--no-browser", "--port", str(port))
    try:
        page = fetched(port, child)
        wait_until(lambda: catches(child, signal.SIGTERM), "the server to wait for its end")
        if page is not None:
            yield port
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        done = nursery().wait(child)
    assert done.returncode == 0, done


def free_port() -> int:
    with closing(socket.socket()) as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


def catches(process: int, number: signal.Signals) -> bool:
    """Does the process handle this signal? True if it has ended, or outside Linux."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.M)
    return caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


def fetched(port: int, server: int) -> str | None:
    """Return the page as soon as it is served; None if it never is."""

    def answered() -> tuple[str | None] | None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
        with closing(connection), suppress(ConnectionError):
            connection.request("GET", "/")
            answer = connection.getresponse()
            if answer.status == 200:
                return (answer.read().decode(),)
        return None if nursery().lives(server) else (None,)

    (page,) = wait_until(answered, "the page", pause=0.1) or (None,)
    return page
