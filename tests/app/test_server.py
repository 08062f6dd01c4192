"""The page as it is served, and requests that no browser would send."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest

from tests.app.serving import serving
from tests.waiting import GUARD

pytestmark = pytest.mark.skipif(find_spec("gradio") is None, reason="no gradio")
FORM = [None, "demo", "fold", "none", 65]


#: sooner than for users; a busy machine still sends a request within the first of them
SOONER = """
from zerotprune.app import firewall
firewall.PATIENCE, firewall.UNREAD = 3.0, 0.5
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with serving(tmp_path_factory.mktemp("temporary"), SOONER) as port:
        yield "127.0.0.1", port


def ask(server: tuple[str, int], method: str, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*server, timeout=GUARD)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def join(server: tuple[str, int], session: str, **odd: Any) -> int:
    sent = {"data": FORM, "event_data": None, "fn_index": 0, "trigger_id": None}
    return ask(server, "POST", "/gradio_api/queue/join", sent | {"session_hash": session} | odd)[0]


@pytest.mark.parametrize(
    "odd",
    [{"fn_index": 10**9}, {"fn_index": -1}, {"fn_index": None}, {"trigger_id": 10**30},
     {"event_id": 7}, {"batched": "maybe"}, {"oauth_token": [1]}],
    ids=str,
)  # fmt: skip
def test_odd_bodies_cause_no_server_error(server: tuple[str, int], odd: dict[str, Any]) -> None:
    assert join(server, "odd", **odd) in (200, 400, 422)


def test_only_a_connection_without_a_request_is_closed(server: tuple[str, int]) -> None:
    """A stream that was opened before outlives the time for a request."""
    stream = http.client.HTTPConnection(*server, timeout=GUARD)
    stream.request("GET", "/gradio_api/heartbeat/tab")
    answer = stream.getresponse()
    assert answer.readline() == b"data: ALIVE\n"
    idle, slow, second = (socket.create_connection(server, timeout=GUARD) for _ in range(3))
    slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
    second.sendall(b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP")
    for connection in (idle, slow, second):
        while connection.recv(10_000):  # ends once the server has closed it
            pass
        connection.close()
    assert ask(server, "GET", "/")[0] == 200
    stream.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):  # still open, with nothing to read yet
        answer.read(100)
    stream.close()


def test_every_answer_forbids_other_sites(server: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*server, timeout=GUARD)
    for path in ("/", "/docs"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert "default-src 'self'" in str(answer.headers["content-security-policy"])
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers.get_all("x-content-type-options") == ["nosniff"]
    connection.close()


def test_results_that_no_one_reads_are_not_kept(server: tuple[str, int]) -> None:
    assert join(server, "unread") == 200
    time.sleep(0.6)
    assert join(server, "another") == 200
    data = "/gradio_api/queue/data?session_hash="
    assert ask(server, "GET", f"{data}unread")[0] == 404
    status, stream = ask(server, "GET", f"{data}another")
    assert status == 200
    assert "process_completed" in stream


def test_many_requests_at_once_are_answered_or_refused(server: tuple[str, int]) -> None:
    with ThreadPoolExecutor(100) as pool:
        statuses = list(pool.map(lambda number: join(server, f"many{number}"), range(100)))
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 60
    assert ask(server, "GET", "/")[0] == 200
