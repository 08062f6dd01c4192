"""Serve the page to this machine, from a private folder, until Ctrl-C.

gradio builds the page and its routes, `firewall` decides what reaches them, and uvicorn serves the
result. All limits are options of these libraries or middleware; nothing uses gradio's internals.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..data.demo import load_photographs
from ..safety.files import private_folder
from .catalog import Catalog, CatalogEntry, generate_examples
from .controller import Controller, Worker

if TYPE_CHECKING:
    import uvicorn

ADDRESS = "127.0.0.1"
PORTS = range(7860, 7960)
MAX_CONNECTIONS = 500
#: The page runs on what this server sends and reaches nothing else.
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


@contextmanager
def serve(
    worker: Worker, entries: Sequence[CatalogEntry], port: int | None = None
) -> Iterator[str]:
    """Serve the page while the context is open, and yield its address.

    Args:
        worker: Computes for all tabs. It is stopped at the end.
        entries: The models that the page offers.
        port: Where to listen. Default: the first free one of `PORTS`.
    """
    with _listen(port) as listener, private_folder() as folder:
        # gradio reads both when it is imported, so not before this line.
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        catalog = Catalog(entries, worker.run(generate_examples), load_photographs())
        server = _create_server(Controller(worker, catalog))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        try:
            thread.start()
            _wait_for_start(server, thread)
            gc.freeze()  # collecting what stays for good takes 0.2 s each time
            yield f"http://{ADDRESS}:{listener.getsockname()[1]}/"
        finally:
            gc.unfreeze()
            # uvicorn reports the tabs that are still listening: they always are.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
            server.should_exit = True
            worker.stop()
            thread.join(timeout=10)


def _listen(port: int | None) -> socket.socket:
    for candidate in PORTS if port is None else [port]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, candidate))
            listener.listen()
            return listener
        except OSError as error:
            listener.close()
            reason = error.strerror or "it cannot be used"
    ports = f"port {port}" if port else f"ports {PORTS.start} to {PORTS.stop - 1}"
    raise OSError(f"cannot listen on {ports}: {reason}; give another --port")


def _create_server(controller: Controller) -> uvicorn.Server:
    import uvicorn

    from .firewall import Deadlines, QueueGuard, guard
    from .page import build_page, mount

    app = Deadlines(guard(mount(build_page(controller), QueueGuard)))
    config = uvicorn.Config(
        app,
        http=app.connection_class(),
        lifespan="on",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        headers=list(HEADERS.items()),
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=0,
    )
    return uvicorn.Server(config)


def _wait_for_start(server: uvicorn.Server, thread: threading.Thread) -> None:
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the page's server ended while it was starting")
        time.sleep(0.01)


def wait() -> None:
    """Return on Ctrl-C, or when the process is asked to end."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    while not over.wait(3600):
        pass
