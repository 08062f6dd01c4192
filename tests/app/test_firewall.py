"""What the firewall lets through to gradio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope

from zerotprune.app import firewall
from zerotprune.app.firewall import DATA, JOIN, MAX_BODY_BYTES, QueueGuard, guard
from zerotprune.app.uploads import MAX_UPLOAD_BYTES

HOST = "127.0.0.1:7860"


class Gradio:
    """An application in gradio's place that records what reaches it and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[tuple[str, bytes]] = []
        methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]
        self.app = Starlette(
            routes=[Route("/{path:path}", self._answer, methods=methods)],
            middleware=[Middleware(QueueGuard)],
        )
        self._error = error

    async def _answer(self, request: Request) -> Response:
        self.requests.append((request.url.path, await request.body()))
        if self._error is not None:
            raise self._error
        return Response("ok")


def scope_of(method: str, path: str, host: str = HOST, origin: str = "", query: str = "") -> Scope:
    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "path": path, "query_string": query.encode(), "headers": headers, "scheme": "http",
        "root_path": "",
    }  # fmt: skip


def receive_from(body: bytes) -> Receive:
    chunks = [body[start : start + 2**20] for start in range(0, len(body), 2**20)] or [b""]

    async def receive() -> Message:
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    return receive


def ask(method: str, path: str, body: bytes = b"", **options: str) -> tuple[int, list[bytes]]:
    """Return the status of the answer, and the bodies that reached gradio."""
    gradio, answers = Gradio(), list[Any]()

    async def send(message: Message) -> None:
        answers.append(message)

    app = guard(gradio.app)
    asyncio.run(app(scope_of(method, path, **options), receive_from(body), send))
    return answers[0]["status"], [received for _, received in gradio.requests]


@pytest.mark.parametrize(
    "path", ["/", "/config", "/assets/index.js", "/static/img/logo.svg", "/gradio_api/heartbeat/ab"]
)
def test_the_pages_routes_are_open(path: str) -> None:
    assert ask("GET", path) == (200, [b""])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/file=http://example.org/"),
        ("GET", "/gradio_api/proxy=http://example.org/"),
        ("GET", "/file=/etc/passwd"),
        ("GET", "/assets/../../etc/passwd"),
        ("GET", "/gradio_api/heartbeat/a/b"),
        ("POST", "/gradio_api/upload"),
        ("POST", "/gradio_api/run/predict"),
        ("POST", "/gradio_api/component_server"),
        ("GET", "/gradio_api/info"),
        ("GET", "/monitoring"),
        ("POST", "/gradio_api/cancel"),
        ("PUT", "/"),
        ("POST", "/"),
        ("GET", JOIN),
    ],
)
def test_all_other_routes_are_closed(method: str, path: str) -> None:
    status, received = ask(method, path)
    assert status in (404, 405)
    assert received == []


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:9000", "http://localhost:9000", 200),
        ("evil.example", "", 400),
        ("127.0.0.1.evil.example:7860", "", 400),
        ("[::1", "", 400),
        ("127.0.0.1@evil.example", "", 400),
        (HOST, "http://evil.example", 403),
        (HOST, "http://127.0.0.1:9999", 403),
        (HOST, f"https://{HOST}", 403),
        (HOST, "null", 403),
    ],
)
def test_it_answers_this_machine_and_its_own_page_only(host: str, origin: str, status: int) -> None:
    assert ask("GET", "/", host=host, origin=origin) == (status, [b""] if status == 200 else [])


GOOD = {"data": [None, "demo", 65, [1]], "event_data": {"text": "x"}, "fn_index": 0,
        "trigger_id": 7, "session_hash": "a1b2"}  # fmt: skip
FILE = {"path": "http://example.org/x", "meta": {"_type": "gradio.FileData"}}


def test_what_the_page_sends_goes_through_unchanged() -> None:
    body = json.dumps(GOOD).encode()
    assert ask("POST", JOIN, body) == (200, [body])


@pytest.mark.parametrize(
    "body",
    [
        *(GOOD | {"data": data} for data in ([FILE], [[[FILE]]], "text", 7)),
        *(GOOD | {"event_data": event} for event in ({"text": FILE}, [FILE], "text")),
        *(GOOD | {"session_hash": name} for name in (None, ["a"], "../a", "", "a" * 65)),
        *(GOOD | {"fn_index": index} for index in ("0", 1e300, True)),
        GOOD | {"trigger_id": [1]},
        [FILE],
        None,
    ],
    ids=str,
)
def test_what_the_page_does_not_send_is_refused(body: Any) -> None:
    assert ask("POST", JOIN, json.dumps(body).encode()) == (400, [])


def test_bodies_are_limited_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    image = json.dumps({**GOOD, "event_data": {"text": "A" * (MAX_UPLOAD_BYTES * 4 // 3)}}).encode()
    assert ask("POST", JOIN, image)[0] == 200
    for body in (b"not json", b"\xff", b"[" * 9_000):
        assert ask("POST", JOIN, body) == (400, [])
    monkeypatch.setattr(json, "loads", None)
    for piece in (b"[],", b"{},", b'"",'):
        assert ask("POST", JOIN, b'{"data": [' + piece * 10**6) == (413, [])
    assert ask("POST", JOIN, b"x" * (MAX_BODY_BYTES + 1)) == (413, [])


def test_a_body_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "PATIENCE", 0.05)
    gradio, answers = Gradio(), list[Any]()

    async def receive() -> Message:
        if answers:
            return {"type": "http.disconnect"}
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Message) -> None:
        answers.append(message)

    asyncio.run(guard(gradio.app)(scope_of("POST", JOIN), receive, send))
    assert answers[0]["status"] == 408
    assert gradio.requests == []


def test_what_gradio_cannot_handle_is_the_senders_fault() -> None:
    gradio, answers = Gradio(KeyError("fn_index")), list[Any]()

    async def send(message: Message) -> None:
        answers.append(message)

    body = receive_from(json.dumps(GOOD).encode())
    asyncio.run(guard(gradio.app)(scope_of("POST", JOIN), body, send))
    assert answers[0]["status"] == 400
    assert len(gradio.requests) == 1


class Streams:
    """gradio's queue in miniature: a stream stays open until its reader leaves."""

    def __init__(self) -> None:
        self.left: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["method"] == "GET":
            assert (await receive())["type"] == "http.disconnect"
            self.left.append(scope["query_string"].decode().removeprefix("session_hash="))
        await send({"type": "http.response.body", "body": b""})


def test_results_that_no_one_reads_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, statuses = Streams(), list[int]()
    queue = QueueGuard(streams)

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def join(session: str) -> None:
        body = json.dumps(GOOD | {"session_hash": session}).encode()
        await queue(scope_of("POST", JOIN), receive_from(body), send)

    async def read(session: str, receive: Callable[[], Any]) -> int:
        await queue(scope_of("GET", DATA, query=f"session_hash={session}"), receive, send)
        return statuses[-1]

    async def scenario() -> None:
        closed = asyncio.Event()

        async def until_closed() -> Message:
            await closed.wait()
            return {"type": "http.disconnect"}

        for session in ("read", "unread"):
            await join(session)
        tab = asyncio.create_task(read("read", until_closed))
        await asyncio.sleep(0)
        await join("another")
        assert queue.cleanups == set()  # they may still be read
        monkeypatch.setattr(firewall, "UNREAD", -1.0)
        await join("new")
        await asyncio.gather(*queue.cleanups)
        assert set(streams.left) == {"unread", "another"}
        assert await read("unread", until_closed) == 404
        closed.set()
        await tab
        assert await read("new", until_closed) == 200

    asyncio.run(scenario())
