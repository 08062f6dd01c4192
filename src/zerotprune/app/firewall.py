"""What may come in: the page's own routes, from this machine's own pages, and plain values only.

gradio serves many routes that this page has no use for: files, uploads, proxies, API docs. They are
closed. A value that names a file or a URL would be opened by gradio before our code sees it:
values with objects in them are refused. So is what the page would never send: a body is looked at
before it is parsed, for a list of a million lists takes fifty times its size.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .connections import PATIENCE
from .sessions import Drop, Sessions
from .uploads import MOST_BYTES

LOG = logging.getLogger(__name__)
HOSTS = ("127.0.0.1", "localhost", "::1")
MOST_BODY = MOST_BYTES * 4 // 3 + 2**20
#: so many lists, objects and commas: the page sends a few values, the longest of which, an image,
#: is one text without any
MOST_MARKS = 10_000
JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"
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
    """Stands before the application as ASGI middleware. `drop` forgets a session's results."""

    def __init__(self, app: ASGIApp, drop: Drop) -> None:
        self.app, self._sessions = app, Sessions(drop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal, body = _refusal(scope), b""
        if refusal is None and scope["method"] == "POST":
            try:
                body = await asyncio.wait_for(_body(receive), PATIENCE)
                refusal = _bad_body(body)
            except TimeoutError:
                refusal = 408, "the rest of it did not come"
            receive = _again(body, receive)
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(text, status)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._sessions.ask(json.loads(body)["session_hash"])
            await self._ask(scope, receive, _with_headers(send))
        elif scope["path"] == DATA:
            await self._read(scope, receive, _with_headers(send))
        else:
            await self.app(scope, receive, _with_headers(send))

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = HTTPConnection(scope).query_params.get("session_hash", "")
        if self._sessions.know(session):
            await self._sessions.read(session, self.app(scope, receive, send))
        else:
            await PlainTextResponse("there is nothing to fetch", 404)(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the application makes nothing of is no fault of it: the page would not send it."""
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception:
            LOG.exception("a request failed")
            if begun:
                raise
            await PlainTextResponse(NOT_THE_PAGE, 400)(scope, receive, send)


Refusal = tuple[int, str]
NOT_THE_PAGE = "this is nothing that the page sends"


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
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BODY:
        return 413, "too much at once"
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
    if len(body) > MOST_BODY or sum(body.count(mark) for mark in (b"[", b"{", b",")) > MOST_MARKS:
        return 413, "too much at once"
    try:
        sent = json.loads(body)
        plain = _plain(sent["data"]) and _plain([*(sent.get("event_data") or {}).values()])
        known = _is_of_the_page(sent)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        plain = known = False
    if not plain:
        return 400, "the page sends plain values only"
    return None if known else (400, NOT_THE_PAGE)


def _is_of_the_page(sent: dict[str, Any]) -> bool:
    """Which of its events it is, by numbers, and whose: a session has a name of letters."""
    numbers = [sent.get("fn_index"), sent.get("trigger_id")]
    return (
        isinstance(sent["data"], list)
        and all(number is None or type(number) is int for number in numbers)
        and re.fullmatch(r"\w{1,64}", sent["session_hash"]) is not None
    )


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
