"""Serve the page from this machine to this machine, out of a private folder."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..data.photographs import load_photographs
from ..temporary import private_folder
from .catalog import Catalog, CatalogEntry, generate_examples
from .controller import Controller
from .worker import Worker

if TYPE_CHECKING:
    import gradio as gr

ADDRESS = "127.0.0.1"


@contextmanager
def serve(
    worker: Worker, entries: Sequence[CatalogEntry], port: int | None = None
) -> Iterator[str]:
    """Serve the page while the context is open; its address. Without a port, a free one is found.

    Whatever gradio writes goes to a private folder, which is gone afterwards.
    """
    _check_free(port)
    with private_folder() as folder:
        # gradio reads both when it is imported: no sooner than here.
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        from .page import build, launch

        catalog = Catalog(entries, worker.run(generate_examples), load_photographs())
        blocks = build(Controller(worker, catalog))
        try:
            address = launch(blocks, port)
            gc.freeze()  # what is there now stays: going through it again and again takes 0.2 s
            yield address
        finally:
            gc.unfreeze()
            _close(blocks)
            worker.stop()


def _close(blocks: gr.Blocks) -> None:
    """At once: open tabs wait for news for ever, and nobody waits for them."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # it would complain of that
    if (server := getattr(blocks, "server", None)) is not None:
        server.force_exit = True
    blocks.close(verbose=False)


def _check_free(port: int | None) -> None:
    if port is None:
        return
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((ADDRESS, port))
        except OSError as error:
            reason = error.strerror or "it cannot be used"
            raise OSError(f"cannot listen on port {port}: {reason}; give another --port") from None


def wait() -> None:
    """Until Ctrl-C, or until the process is asked to end."""
    over = threading.Event()
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, lambda *_: over.set())
    while not over.wait(3600):
        pass
