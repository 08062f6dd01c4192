"""Let in only the page's routes, requests from the page itself, and plain values.

starlette checks the host, the routes and the size of a body. Four checks have no official
equivalent and are plain ASGI here:

- `SameOrigin` refuses requests that another site's page makes. CORS only hides the answers.
- `QueueGuard` looks at a body before it is parsed, since a list of a million lists takes fifty
  times its size, and refuses objects in it: gradio opens a file or URL named by one before our code
  sees it.
- `QueueGuard` drops results that no browser fetches. gradio keeps them for 2,000 sessions.
- `Deadlines` closes connections that never finish the head of a request. uvicorn waits forever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .uploads import MAX_UPLOAD_BYTES

LOG = logging.getLogger(__name__)
HOSTS = ("127.0.0.1", "localhost")
JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"
#: gradio serves many more, which this page does not use: files, uploads, proxies, API docs
READ_ROUTES = (
    "/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/assets/{path:path}",
    "/static/{path:path}", "/svelte/{path:path}", "/gradio_api/startup-events",
    "/gradio_api/theme.css", "/gradio_api/heartbeat/{session}", "/gradio_api/app_id", DATA,
)  # fmt: skip
MAX_BODY_BYTES = MAX_UPLOAD_BYTES * 4 // 3 + 2**20
#: lists, objects and commas. The page sends a few values; the longest, an image, is one string.
MAX_JSON_MARKS = 10_000
PATIENCE = 20.0  # seconds for the head of a request, and again for its body
UNREAD = 60.0  # seconds that results wait for a reader; the page reads them at once


def guard(app: Starlette) -> Starlette:
    """Return an application that passes on the page's own requests, and nothing else."""
    return Starlette(
        routes=[
            *(Route(path, app, methods=["GET"]) for path in READ_ROUTES),
            Route(JOIN, app, methods=["POST"]),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
            Middleware(SameOrigin),
        ],
        lifespan=app.router.lifespan_context,
        max_body_size=MAX_BODY_BYTES,
    )


class SameOrigin:
    """Refuse requests from other sites, paths with `..`, and websockets."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin not in (None, f"http://{headers.get('host')}"):
                await PlainTextResponse("wrong origin", 403)(scope, receive, send)
                return
            if ".." in scope["path"]:
                await PlainTextResponse("not found", 404)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class QueueGuard:
    """Check what goes into gradio's queue, and drop results that no one reads.

    It belongs directly around gradio's routes, to see what they raise. A session is a browser tab,
    under the name that it chose for itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._last_join: dict[str, float] = {}
        self._readers: Counter[str] = Counter()
        self.cleanups: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = {JOIN: self._join, DATA: self._read}.get(scope.get("path", ""), self.app)
        await handle(scope, receive, send)

    async def _join(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                body = await _read_body(receive)
        except TimeoutError:
            await PlainTextResponse("the request body is incomplete", 408)(scope, receive, send)
            return
        except HTTPException as error:  # starlette's, for a body that is too large
            await PlainTextResponse(error.detail, error.status_code)(scope, receive, send)
            return
        if body.count(b"[") + body.count(b"{") + body.count(b",") > MAX_JSON_MARKS:
            await PlainTextResponse("too many values", 413)(scope, receive, send)
            return
        session = _session_of(body)
        if session is None:
            await _refuse(scope, receive, send)
            return
        self._drop_unread(scope)
        self._last_join[session] = time.monotonic()
        await self._pass_on(scope, _replay(body, receive), send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 where gradio raises: the page never sends what it cannot handle."""
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception:
            LOG.exception("a request failed")
            if started:
                raise
            await _refuse(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = QueryParams(scope["query_string"]).get("session_hash", "")
        if session not in self._last_join:
            await PlainTextResponse("no results", 404)(scope, receive, send)
            return
        self._readers[session] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._readers[session] -= 1

    def _drop_unread(self, scope: Scope) -> None:
        """Drop results that no one reads. Only joins make results, so every join calls this."""
        oldest = time.monotonic() - UNREAD
        for session, joined in list(self._last_join.items()):
            if joined < oldest and not self._readers[session]:
                del self._last_join[session], self._readers[session]
                task = asyncio.create_task(self._drop(scope, session))
                self.cleanups.add(task)
                task.add_done_callback(self.cleanups.discard)

    async def _drop(self, scope: Scope, session: str) -> None:
        """Open the stream and leave, as a browser might: gradio then cleans up.

        The first visit takes the results and cancels what still waits. The second leaves at once,
        which makes gradio forget the session.
        """
        query = f"session_hash={session}".encode()
        scope = {**scope, "method": "GET", "path": DATA, "raw_path": DATA.encode(),
                 "query_string": query, "headers": [(b"host", b"localhost")]}  # fmt: skip
        for seconds in (1.0, 0.0):
            try:
                await self.app(scope, *_visitor(seconds))
            except Exception:  # gradio raises if the session is gone
                LOG.debug("dropping results failed", exc_info=True)


def _visitor(seconds: float) -> tuple[Receive, Send]:
    """Return a client that ignores the answer and disconnects some time after it started."""
    started = asyncio.Event()

    async def receive() -> Message:
        await started.wait()
        if seconds:
            await asyncio.sleep(seconds)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        started.set()

    return receive, send


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("not a request of this page", 400)(scope, receive, send)


async def _read_body(receive: Receive) -> bytes:
    """Read the whole body; `receive` raises if it is too large."""
    chunks, more = [], True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Deliver a body that was read already, then whatever follows it."""
    unread = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": unread.pop()} if unread else await receive()

    return replay


def _session_of(body: bytes) -> str | None:
    """Return the session's name, or None if this is not a body that the page sends."""
    try:
        sent = json.loads(body)
        values, event = sent["data"], sent.get("event_data") or {}
        session = sent["session_hash"]
        numbers = [sent.get("fn_index"), sent.get("trigger_id")]
        is_ours = (
            isinstance(values, list)
            and _is_plain(values)
            and all(map(_is_plain, event.values()))
            and all(number is None or type(number) is int for number in numbers)
            and re.fullmatch(r"\w{1,64}", session)
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return session if is_ours else None


def _is_plain(value: object) -> bool:
    """Return whether a value has only numbers, strings and lists: nothing that can name a file."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict)


class Deadlines:
    """Close connections that do not send the head of a request in time.

    As an ASGI application it learns when a request has begun; `connection_class` is for uvicorn's
    `http` option and learns when bytes arrive.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        self._requests: Counter[Any] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = tuple(scope.get("client") or ())
        self._stop(client)
        self._requests[client] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._requests[client] -= 1
            if not self._requests[client]:
                del self._requests[client]

    def connection_class(self) -> type[asyncio.Protocol]:
        """Return uvicorn's class for a connection, with the deadline."""
        deadlines = self

        class Connection(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                deadlines._start(transport)

            def data_received(self, data: bytes) -> None:
                deadlines._start(self.transport)
                super().data_received(data)

            def connection_lost(self, exc: Exception | None) -> None:
                deadlines._stop(_client(self.transport))
                super().connection_lost(exc)

        return Connection

    def _start(self, transport: asyncio.Transport) -> None:
        client = _client(transport)
        if client not in self._timers and not self._requests[client]:
            loop = asyncio.get_running_loop()
            self._timers[client] = loop.call_later(PATIENCE, transport.close)

    def _stop(self, client: tuple[Any, ...]) -> None:
        if timer := self._timers.pop(client, None):
            timer.cancel()


def _client(transport: asyncio.Transport) -> tuple[Any, ...]:
    return tuple(transport.get_extra_info("peername") or ())[:2]
