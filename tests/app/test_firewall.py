"""What the firewall lets through."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from zerotprune.app import firewall
from zerotprune.app.firewall import MOST_BODY, Firewall
from zerotprune.app.sessions import Sessions
from zerotprune.app.uploads import MOST_BYTES


def ask(
    method: str, path: str, body: bytes = b"", host: str = "127.0.0.1:7860", origin: str = ""
) -> tuple[int, bytes, list[bytes]]:
    """The status of the answer, its headers' names as bytes, and the body that came through."""
    came: list[bytes] = []
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        came.append((await receive())["body"] if method == "POST" else b"")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    pieces = [body[at : at + 2**20] for at in range(0, len(body), 2**20)] or [b""]

    async def receive() -> Any:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(Firewall(app, _never)(scope, receive, send))
    return answers[0]["status"], repr(answers[0]["headers"]).encode(), came


async def _never(session: str) -> None:
    raise AssertionError("nothing is old enough to be dropped")


def test_the_firewall_knows_the_pages_own_routes_only() -> None:
    assert ask("GET", "/")[0] == 200
    assert b"content-security-policy" in ask("GET", "/assets/index.js")[1]
    for method, path in (
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/file=http://example.org/"),
        ("GET", "/gradio_api/proxy=http://example.org/"),
        ("GET", "/file=/etc/passwd"),
        ("GET", "/assets/../../etc/passwd"),
        ("POST", "/gradio_api/upload"),
        ("POST", "/gradio_api/run/predict"),
        ("POST", "/gradio_api/component_server"),
        ("GET", "/gradio_api/info"),
        ("GET", "/monitoring"),
        ("POST", "/gradio_api/cancel"),
        ("PUT", "/"),
    ):
        status, _, came = ask(method, path)
        assert (status, came) == (404, []), path


def test_the_firewall_answers_this_machine_and_its_own_page_only() -> None:
    assert ask("GET", "/", host="localhost:9000", origin="http://localhost:9000")[0] == 200
    for host, origin in (
        ("evil.example", ""),
        ("127.0.0.1.evil.example:7860", ""),
        ("127.0.0.1:7860", "http://evil.example"),
        ("127.0.0.1:7860", "http://127.0.0.1:9999"),
        ("127.0.0.1:7860", "null"),
        ("[::1", ""),
    ):
        assert ask("GET", "/", host=host, origin=origin)[0] == 403, (host, origin)


JOIN = "/gradio_api/queue/join"
GOOD = {"data": [None, "demo", 65, [1]], "event_data": {"text": "x"}, "fn_index": 0,
        "trigger_id": 7, "session_hash": "a1b2"}  # fmt: skip


def test_the_firewall_takes_plain_values_of_limited_size() -> None:
    good = json.dumps(GOOD).encode()
    assert ask("POST", JOIN, good) == (*ask("POST", JOIN, good)[:2], [good])
    file = {"path": "http://example.org/x", "meta": {"_type": "gradio.FileData"}}
    for sent in (
        {**GOOD, "data": [file]},
        {**GOOD, "data": [[[file]]]},
        {**GOOD, "event_data": {"text": file}},
        {**GOOD, "event_data": [file]},
        [file],
    ):
        status, _, came = ask("POST", JOIN, json.dumps(sent).encode())
        assert (status, came) == (400, []), sent
    assert ask("POST", JOIN, b"not json")[0] == 400
    assert ask("POST", JOIN, b"[" * 9_000)[0] == 400
    assert ask("POST", JOIN, b"x" * (MOST_BODY + 1))[0] == 413


def test_an_image_is_let_through_and_a_million_lists_are_not_even_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = json.dumps({**GOOD, "event_data": {"text": "A" * (MOST_BYTES * 4 // 3)}}).encode()
    assert ask("POST", JOIN, image)[0] == 200
    monkeypatch.setattr(json, "loads", None)
    for piece in (b"[],", b"{},", b'"",'):
        assert ask("POST", JOIN, b'{"data": [' + piece * 10**6)[0] == 413


@pytest.mark.parametrize(
    "odd",
    [{"session_hash": None}, {"session_hash": ["a"]}, {"session_hash": "../a"}, {"data": "text"},
     {"data": 7}, {"fn_index": "0"}, {"fn_index": 1e300}, {"trigger_id": [1]}],
    ids=str,
)  # fmt: skip
def test_what_the_page_does_not_send_is_refused(odd: dict[str, Any]) -> None:
    status, _, came = ask("POST", JOIN, json.dumps(GOOD | odd).encode())
    assert (status, came) == (400, [])


def test_a_body_that_does_not_end_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "PATIENCE", 0.05)
    answers: list[Any] = []

    async def receive() -> Any:
        if answers:
            return {"type": "http.disconnect"}
        return await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        answers.append(message)

    async def app(*_: Any) -> None:
        raise AssertionError("it came through")

    scope = {"type": "http", "method": "POST", "path": JOIN, "headers": [(b"host", b"localhost")]}
    asyncio.run(Firewall(app, _never)(scope, receive, send))
    assert answers[0]["status"] == 408


def test_results_that_nobody_fetches_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []

    async def drop(session: str) -> None:
        dropped.append(session)

    async def story() -> None:
        sessions, over = Sessions(drop), asyncio.Event()

        async def reading() -> None:
            await over.wait()

        for each in ("read", "unread"):
            await sessions.ask(each)
        tab = asyncio.create_task(sessions.read("read", reading()))
        await asyncio.sleep(0)
        await sessions.ask("another")
        assert dropped == []  # they may still be fetched
        monkeypatch.setattr("zerotprune.app.sessions.UNREAD", -1.0)
        await sessions.ask("new")
        assert dropped == ["unread", "another"]
        over.set()
        await tab
        await sessions.ask("last")
        assert dropped == ["unread", "another", "read", "new"]

    asyncio.run(story())
