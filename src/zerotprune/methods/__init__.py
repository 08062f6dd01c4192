"""Methods of token reduction, all on the one socket `zerotprune.method.Method`, and their names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from ..method import REGISTERED, Method
from .a_vit import AViT
from .ats import ATS
from .diffrate import DiffRate
from .dynamicvit import DynamicViT
from .evit import EViT
from .fold import Fold
from .slicing import Slicing
from .tome import ToMe
from .top_k import TopK
from .zero_tprune import ZeroTPrune

__all__ = [
    "ATS", "AViT", "DiffRate", "DynamicViT", "EViT", "Fold", "Method", "Slicing", "ToMe", "TopK",
    "ZeroTPrune",
]  # fmt: skip

DEFAULT = "fold"
#: … where every patch comes out: what CLS thinks of a patch matters little there
DENSE = Fold(importance="received")

for _module in iter_modules(__path__):  # a file in this folder is all that a method needs
    import_module(f".{_module.name}", __name__)


def names() -> list[str]:
    """Every name that a method can be asked for by, those of the default first."""
    shown = (
        name
        for name, kind in REGISTERED.items()
        if name != kind.name or not _named_by_variants(kind)
    )
    return sorted(shown, key=lambda name: REGISTERED[name].name != DEFAULT)


def _named_by_variants(kind: type[Method]) -> bool:
    """Do the class's defaults have a name of their own among its variants?"""
    return any(kind(**options) == kind() for options in kind.variants.values())


def resolve(method: object) -> Method:
    """The method itself, or the one of a registered name; or of `FILE.py:CLASS`, a user's own.

    >>> resolve("tome-uni")
    ToMe(proportional=False)
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"{method.__name__} is a class: give an object of it, {method.__name__}()")
    if not isinstance(method, str):
        raise TypeError(f"{method!r} is not a method of token reduction: see zerotprune.methods")
    if ".py:" in method:
        return _from_file(method)
    kind = REGISTERED.get(method)
    if kind is None:
        raise ValueError(
            f"unknown method {method!r}; the methods are {', '.join(names())}, "
            "and FILE.py:CLASS for one of your own"
        )
    return kind(**kind.variants.get(method, {}))


def _from_file(text: str) -> Method:
    """Imported by its file's name, so that worker processes can import it too."""
    file, _, name = text.rpartition(":")
    path = Path(os.path.realpath(file))
    if not path.is_file():
        raise ValueError(f"no file {file} to take the method {name} from")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        module = import_module(path.stem)
    except Exception as error:  # a user's file may fail in any way
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    if os.path.realpath(str(module.__file__)) != str(path):
        raise ValueError(f"{path.name} is also the name of an installed module: rename the file")
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"{file} has no method {name}: it must be a subclass of zerotprune.Method")
    return kind()


def name_of(method: Method) -> str:
    """The name that stands for the method with its options; else that of its class."""
    kind = type(method)
    for name, options in kind.variants.items():
        if kind(**options) == method:
            return name
    return getattr(kind, "name", kind.__name__)


def to_data(method: Method) -> dict[str, Any]:
    """The method as it is written down: its name, and the options that differ from its defaults."""
    kind: Any = type(method)
    usual = kind()
    options = {
        each.name: getattr(method, each.name)
        for each in fields(kind)
        if getattr(method, each.name) != getattr(usual, each.name)
    }
    return {"name": getattr(kind, "name", kind.__name__), "options": options}


def from_data(data: object) -> Method:
    """The method that was written down."""
    if not isinstance(data, Mapping) or set(data) != {"name", "options"}:
        raise ValueError('a method is a JSON object with exactly "name" and "options"')
    name, options = data["name"], data["options"]
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise ValueError('"name" of a method must be a string and "options" a JSON object')
    if name not in REGISTERED:  # a file of data names no code to run
        raise ValueError(f"unknown method {name!r}; the methods are {', '.join(names())}")
    kind: Any = REGISTERED[name]
    known = [each.name for each in fields(kind)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"{name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}"
        )
    values = {key: tuple(each) if isinstance(each, list) else each for key, each in options.items()}
    try:
        made: Method = kind(**{**kind.variants.get(name, {}), **values})
    except TypeError as error:
        raise ValueError(f"the options of {name}: {error}") from None
    return made
