"""`zerotprune app`: a local web page on which anyone can try pruning on their own image."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..app.catalog import BUILT_IN, CatalogEntry
from ..app.controller import Worker
from ..app.server import serve, wait
from ..data.models import load
from ..safety.ranges import RANGES
from .console import console_for
from .options import Input, read_class_names


def app(
    *,
    model: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    weights: Annotated[tuple[Input, ...], Parameter(negative=())] = (),
    random_weights: bool = False,
    names: Input | None = None,
    port: Annotated[int, RANGES["port"]] | None = None,
    browser: bool = True,
) -> None:
    """Open a page that shows what pruning does to an image: patches, predictions, cost, speed.

    It serves this machine only, works offline, and opens no file that the browser names.

    Parameters
    ----------
    model
        A model to offer beside the built-in one, of any library, or a folder of `ztp.save`. Repeat
        it for several models.
    weights
        Local weights, one file per --model in the same order. Default: the published ones.
    random_weights
        Use random weights: speed is correct, predictions are not.
    names
        A file with the class names of every --model, one per line. ImageNet's are known.
    port
        Where to listen. Default: 7860, or the next free port.
    browser
        Open the page in a browser.
    """
    if find_spec("gradio") is None:
        raise ValueError("the page needs gradio: pip install 'zerotprune[app]'")
    worker = Worker()
    entries = worker.run(lambda: _load_entries(model, weights, random_weights, names))
    with serve(worker, entries, port) as address:
        console_for().print(f"The page is at {address} on this machine; Ctrl-C ends it.")
        if browser:
            webbrowser.open(address)
        wait()


def _load_entries(
    model: Sequence[str], weights: Sequence[Path], random_weights: bool, names: Path | None
) -> list[CatalogEntry]:
    """Load the built-in model and those that the user named."""
    if weights and random_weights:
        raise ValueError("give --weights or --random-weights, not both")
    if weights and len(weights) != len(model):
        raise ValueError(
            f"--weights needs one file per --model, got {len(weights)} for {len(model)} models"
        )
    if len({BUILT_IN, *model}) != 1 + len(model):
        raise ValueError("each --model must be different, and the built-in one is always there")
    if not model and (random_weights or names is not None):
        option = "--random-weights" if random_weights else "--names"
        raise ValueError(f"{option} needs --model, too")
    entries = [CatalogEntry(BUILT_IN, load(BUILT_IN))]
    for index, name in enumerate(model):
        file = weights[index] if weights else None
        pretrained = file is None and not random_weights
        loaded = load(name, weights=file, pretrained=pretrained)
        class_names = None if names is None else read_class_names(names, loaded)
        entries.append(CatalogEntry(name, loaded, class_names, custom_weights=not pretrained))
    return entries
