"""`zerotprune app`: a local web page on which anyone can try pruning on their own image."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from ..app.catalog import BUILT_IN, CatalogEntry
from ..app.server import serve, wait
from ..app.worker import Worker
from ..data.models import load
from ..files import names_in


def app(
    *,
    model: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    weights: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    random_weights: bool = False,
    names: Path | None = None,
    port: int | None = None,
    browser: bool = True,
) -> None:
    """Open a page that shows what pruning does to an image: patches, predictions, cost, speed.

    It listens on this machine only, works offline, and opens no file that the browser names.

    Parameters
    ----------
    model
        A timm model to offer beside the built-in one; may be given several times.
    weights
        Local weights, one file for each --model in the same order. Default: timm's pretrained ones.
    random_weights
        Random weights instead: to see speed, not sense.
    names
        A file with the names of the classes, one a line; ImageNet's are known.
    port
        Where to listen. Default: 7860, or the next one that is free.
    browser
        Open the page in a browser.
    """
    if find_spec("gradio") is None:
        raise ValueError("the page needs gradio: pip install 'zerotprune[app]'")
    worker = Worker()
    entries = worker.run(lambda: _load_entries(model, weights, random_weights, names))
    with serve(worker, entries, port) as address:
        Console().print(
            f"The page is at [bold]{address}[/bold] on this machine; Ctrl-C ends it.",
            highlight=False,
        )
        if browser:
            webbrowser.open(address)
        wait()


def _load_entries(
    model: Sequence[str], weights: Sequence[Path], random_weights: bool, names: Path | None
) -> list[CatalogEntry]:
    """The built-in model, and those that are named."""
    if weights and random_weights:
        raise ValueError("give --weights or --random-weights, not both")
    if weights and len(weights) != len(model):
        raise ValueError(
            f"{len(weights)} files of --weights for {len(model)} of --model: give one for each"
        )
    if len({BUILT_IN, *model}) != 1 + len(model):
        raise ValueError("give each --model once; the built-in one is there anyway")
    called = None if names is None else names_in(names)
    entries = [CatalogEntry(BUILT_IN, load(BUILT_IN))]
    for number, name in enumerate(model):
        file = weights[number] if weights else None
        pretrained = file is None and not random_weights
        built = load(name, weights=file, pretrained=pretrained)
        entries.append(CatalogEntry(name, built, called, own_weights=not pretrained))
    return entries
