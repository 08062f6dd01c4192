"""The page as it is served, asked by whoever knows HTTP: what no browser would send."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.skipif(find_spec("gradio") is None, reason="no gradio")
FORM = [None, "demo", "fold", "none", 65]


#: so that nobody has to wait for it
SOON = """
from zerotprune.app import connections, sessions
connections.PATIENCE, sessions.UNREAD = 1.0, 0.5
from zerotprune.cli import main
main()
"""


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-c", SOON, "app", "--no-browser"]
    surroundings = os.environ | {"COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings) as process:
        assert process.stdout is not None
        where = urlsplit(process.stdout.readline().split()[4])
        yield str(where.hostname), int(where.port or 0)
        process.terminate()


def ask(place: tuple[str, int], method: str, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*place, timeout=30)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def join(place: tuple[str, int], session: str, **odd: Any) -> int:
    sent = {"data": FORM, "event_data": None, "fn_index": 0, "trigger_id": None}
    return ask(place, "POST", "/gradio_api/queue/join", sent | {"session_hash": session} | odd)[0]


@pytest.mark.parametrize(
    "odd",
    [{"fn_index": 10**9}, {"fn_index": -1}, {"fn_index": None}, {"trigger_id": 10**30},
     {"event_id": 7}, {"batched": "maybe"}, {"oauth_token": [1]}],
    ids=str,
)  # fmt: skip
def test_odd_bodies_are_no_fault_of_the_server(place: tuple[str, int], odd: dict[str, Any]) -> None:
    assert join(place, "odd", **odd) in (200, 400, 422)


def test_a_connection_without_a_request_is_closed(place: tuple[str, int]) -> None:
    idle = [socket.create_connection(place, timeout=20) for _ in range(2)]
    idle[1].sendall(b"GET / HTTP/1.1\r\nHost: ")
    for each in idle:
        assert each.recv(100) == b""
        each.close()
    assert ask(place, "GET", "/")[0] == 200


def test_results_that_nobody_fetches_are_not_kept(place: tuple[str, int]) -> None:
    assert join(place, "unread") == 200
    time.sleep(0.6)
    assert join(place, "another") == 200
    data = "/gradio_api/queue/data?session_hash="
    assert ask(place, "GET", f"{data}unread") == (404, "there is nothing to fetch")
    status, said = ask(place, "GET", f"{data}another")
    assert status == 200
    assert "process_completed" in said
