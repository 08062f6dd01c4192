"""The libraries: which one a model is of or a name means, and models made by their names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn


class Library(NamedTuple):
    """Where a library's models are defined, what their names begin with on the command line, and
    where we define some ourselves, if we do."""

    module: str
    prefix: str = ""
    ours: str | None = None


#: our package for each library
LIBRARIES: dict[str, Library] = {
    "timm": Library("timm"),
    "torchvision": Library("torchvision", "torchvision:"),
    "open_clip": Library("open_clip", "open_clip:"),
    "lvvit": Library("tlt", "lvvit:", f"{__package__}.lvvit.model"),
    "transformers": Library("transformers", "hf:"),
}


def home_of(model: nn.Module) -> ModuleType | None:
    """Our package for the library that the model's class, or one it inherits from, is of."""
    for kind in type(model).__mro__:
        defined = kind.__module__.partition(".")[0]
        for home, library in LIBRARIES.items():
            if defined == library.module or kind.__module__ == library.ours:
                return _package(home)
    return None


def create(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """A model by its name on the command line: a prefix of the library's, then the library's own
    name for it. Options that are None leave what the library does by itself."""
    home, own = _named(name)
    make = home.create
    given = {option: value for option, value in options.items() if value is not None}
    foreign = sorted(given.keys() - inspect.signature(make).parameters.keys())
    if foreign:
        raise ValueError(f"--{foreign[0]} is nothing that {name} could be given")
    model: nn.Module = make(own, pretrained, **given)
    return model


def shape_in(name: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """How the model of that name is to be made so that it takes these weights, as far as its
    library's package can tell: `create` takes it as options."""
    read = getattr(_named(name)[0], "shape_in", None)
    return {} if read is None else dict(read(state))


def own_weights(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the weights in a file, those of the model of that name: a file may hold more towers."""
    choose = getattr(_named(name)[0], "own_weights", None)
    return dict(state if choose is None else choose(state))


def _named(name: str) -> tuple[ModuleType, str]:
    """Our package for the library that a name on the command line means, and its own name."""
    prefix, colon, own = name.rpartition(":")
    for home, library in LIBRARIES.items():
        if library.prefix == prefix + colon:
            return _package(home), own
    prefixes = ", ".join(library.prefix for library in LIBRARIES.values() if library.prefix)
    raise ValueError(
        f"unknown model {name!r}: give 'demo' or the name of a timm model, or one with a prefix "
        f"({prefixes})"
    )


def _package(home: str) -> ModuleType:
    return import_module(f".{home}", __package__)
