"""What may come in: the page's own routes, from this machine's own pages, and plain values only.

gradio serves many routes that this page has no use for: files, uploads, proxies, API docs. They are
closed. A value that names a file or a URL would be opened by gradio before our code sees it:
values with objects in them are refused.
"""

from __future__ import annotations

import json
import re
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .uploads import MOST_BYTES

HOSTS = ("127.0.0.1", "localhost", "::1")
MOST_BODY = MOST_BYTES * 4 // 3 + 2**20
ROUTES = {
    "GET": re.compile(
        r"/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/(assets|static|svelte)/.*"
        r"|/gradio_api/(startup-events|theme\.css|queue/data|heartbeat/\w+|app_id)/?"
    ),
    "POST": re.compile("/gradio_api/queue/join"),
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

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = _refusal(scope)
        if refusal is None and scope["method"] == "POST":
            body = await _body(receive)
            refusal = _bad_body(body)
            receive = _again(body, receive)
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(text, status)(scope, receive, send)
            return
        await self.app(scope, receive, _with_headers(send))


Refusal = tuple[int, str]


def _refusal(scope: Scope) -> Refusal | None:
    headers = HTTPConnection(scope).headers
    host, origin = headers.get("host", ""), headers.get("origin")
    if _parse(f"//{host}").hostname not in HOSTS:
        return 403, "this page answers to this machine's own name only"
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


async def _body(receive: Receive) -> bytes:
    """No more than a little over the limit is ever held."""
    body, more = bytearray(), True
    while more and len(body) <= MOST_BODY:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _bad_body(body: bytes) -> Refusal | None:
    if len(body) > MOST_BODY:
        return 413, "too much at once"
    try:
        sent = json.loads(body)
        plain = _plain(sent["data"]) and _plain([*(sent.get("event_data") or {}).values()])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        plain = False
    return None if plain else (400, "the page sends plain values only")


def _plain(value: object) -> bool:
    """Numbers, texts, and lists of them: nothing that could name a file."""
    if isinstance(value, list):
        return all(map(_plain, value))
    return not isinstance(value, dict)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application; then what else comes, such as the goodbye."""
    waiting = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": waiting.pop()} if waiting else await receive()

    return replay


def _with_headers(send: Send) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return adding
