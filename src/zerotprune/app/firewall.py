"""What may come in: the page's own routes, from this machine's own pages, and plain values only.

gradio serves many routes that this page has no use for: files, uploads, proxies, API docs. They are
closed. A value that names a file or a URL would be opened by gradio before our code sees it:
values with objects in them are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .uploads import MOST_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost", "::1")
MOST_BODY = MOST_BYTES * 4 // 3 + 2**20
JOIN = "/gradio_api/queue/join"
ROUTES = {
    "GET": re.compile(
        r"/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/(assets|static|svelte)/.*"
        r"|/gradio_api/(startup-events|theme\.css|queue/data|heartbeat/\w+|app_id)/?"
    ),
    "POST": re.compile(JOIN),
}
ROUTES["HEAD"] = ROUTES["GET"]

#: The page runs on what this server sends and reaches nothing else, whatever its parts ask for.
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Firewall:
    """Stands before the application as ASGI middleware."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = _refusal(scope)
        if refusal is None and scope["method"] == "POST":
            body = await _body(receive)
            refusal = _bad_body(scope["path"], body)
            receive = _again(body or b"", receive)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        await self.app(scope, receive, _with_headers(send))


Refusal = tuple[int, str]


def _refusal(scope: Message) -> Refusal | None:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    host = headers.get("host", "")
    if _parse(f"//{host}").hostname not in HOSTS:
        return 403, "this page answers to this machine's own name only"
    origin = headers.get("origin")
    if origin is not None and _parse(origin).netloc != host:
        return 403, "this page answers to itself only"
    routes = ROUTES.get(scope["method"])
    if routes is None or not routes.fullmatch(scope["path"]) or ".." in scope["path"]:
        return 404, "there is nothing here"
    return None


def _parse(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


async def _body(receive: Receive) -> bytes | None:
    """None if it is too large: no more than the limit is ever held."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MOST_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _bad_body(path: str, body: bytes | None) -> Refusal | None:
    if body is None:
        return 413, "too much at once"
    if path != JOIN:
        return None
    try:
        sent = json.loads(body)
        plain = isinstance(sent, dict) and _plain(sent.get("data"))
        plain = plain and all(_plain(value) for value in (sent.get("event_data") or {}).values())
    except (ValueError, RecursionError, AttributeError):
        plain = False
    return None if plain else (400, "the page sends plain values only")


def _plain(value: object) -> bool:
    """Numbers, texts, and lists of them: nothing that could name a file."""
    if isinstance(value, list):
        return all(_plain(each) for each in value)
    return not isinstance(value, dict)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application; then what else comes, such as the goodbye."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _with_headers(send: Send) -> Send:
    extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return adding


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
