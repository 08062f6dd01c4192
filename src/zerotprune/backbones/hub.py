"""Weights on the Hugging Face Hub: can they be had at all?"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit
from urllib.request import getproxies


def refuse_unreachable(
    name: str,
    repository: str,
    files: Sequence[str],
    instead: str = "give a local file with --weights",
) -> None:
    """Without a network the Hub's client tries again and again, for a minute: say at once what to
    do. Nothing is wrong where one of the files lies in the cache, or behind a proxy."""
    from huggingface_hub import constants, try_to_load_from_cache

    cached = any(isinstance(try_to_load_from_cache(repository, file), str) for file in files)
    if cached or getproxies():
        return
    address = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=3).close()
    except OSError:
        raise ValueError(
            f"the pretrained weights of {name} cannot be fetched: {address.hostname} cannot be "
            f"reached; {instead}"
        ) from None
