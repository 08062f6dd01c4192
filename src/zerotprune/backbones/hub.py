"""Whether published weights can be had from the Hugging Face hub, before a library tries to."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit
from urllib.request import getproxies


def refuse_unreachable(name: str, hub: str, files: Iterable[str]) -> None:
    """Without a network libraries try again and again, for a minute: say at once what to do, unless
    one of the files is here already."""
    from huggingface_hub import constants, try_to_load_from_cache

    if getproxies():
        return
    cached = any(isinstance(try_to_load_from_cache(hub, file), str) for file in files)
    address = urlsplit(constants.ENDPOINT)
    try:
        if not cached:
            socket.create_connection((address.hostname, address.port or 443), timeout=3).close()
    except OSError:
        raise ValueError(
            f"the pretrained weights of {name} cannot be fetched: {address.hostname} cannot be "
            "reached; give a local file with --weights"
        ) from None
