"""What the firewall lets through."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from zerotprune.app.firewall import MOST_BODY, Firewall


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

    asyncio.run(Firewall(app)(scope, receive, send))
    return answers[0]["status"], repr(answers[0]["headers"]).encode(), came


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


def test_the_firewall_takes_plain_values_of_limited_size() -> None:
    join = "/gradio_api/queue/join"
    good = json.dumps({"data": [None, "demo", 65, [1]], "event_data": {"text": "x"}}).encode()
    assert ask("POST", join, good) == (*ask("POST", join, good)[:2], [good])
    file = {"path": "http://example.org/x", "meta": {"_type": "gradio.FileData"}}
    for sent in (
        {"data": [file]},
        {"data": [[[file]]]},
        {"data": [1], "event_data": {"text": file}},
        {"data": [1], "event_data": [file]},
        [file],
    ):
        status, _, came = ask("POST", join, json.dumps(sent).encode())
        assert (status, came) == (400, []), sent
    assert ask("POST", join, b"not json")[0] == 400
    assert ask("POST", join, b"[" * 10**6)[0] == 400
    assert ask("POST", join, b"x" * (MOST_BODY + 1))[0] == 413
