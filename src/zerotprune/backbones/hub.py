"""Weights on the Hugging Face Hub: can they be had at all?"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen


def refuse_unreachable(
    name: str,
    repository: str,
    files: Sequence[str],
    instead: str = "give a local file with --weights",
) -> None:
    """Without a network the Hub's client tries again and again, for a minute: say at once what to
    do. Nothing is wrong where one of the files lies in the cache."""
    from huggingface_hub import constants, try_to_load_from_cache

    if any(isinstance(try_to_load_from_cache(repository, file), str) for file in files):
        return
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        return  # somebody answers
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # the same: the Hub's own client brings other certificates
        host = urlsplit(constants.ENDPOINT).hostname
        raise ValueError(
            f"the pretrained weights of {name} cannot be fetched: {host} cannot be reached; "
            f"{instead}"
        ) from None
