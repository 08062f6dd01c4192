"""The built-in methods, one file each, all subclasses of `zerotprune.Method`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from .. import method as registry
from ..method import Method, from_data, name_of, resolve, to_data
from .atc import ATC
from .ats import ATS
from .diffrate import DiffRate
from .evit import EViT
from .fold import Fold
from .mctf import MCTF, EarlyMCTF
from .pitome import PiToMe
from .slicing import Slicing
from .tome import ToMe
from .top_k import TopK
from .zero_tprune import ZeroTPrune

__all__ = [
    "ATC", "ATS", "MCTF", "DiffRate", "EViT", "EarlyMCTF", "Fold", "Method", "PiToMe", "Slicing",
    "ToMe", "TopK", "ZeroTPrune", "from_data", "name_of", "names", "resolve", "to_data",
]  # fmt: skip

DEFAULT = "fold"
#: the default with outputs="grid", where the attention of CLS matters little
DENSE = Fold(importance="received")

for _module in iter_modules(__path__):  # adding a method is adding a file
    import_module(f".{_module.name}", __name__)

#: trained methods: class → registered name
_TRAINED = {"AViT": "a-vit", "DynamicViT": "dynamicvit"}


def names() -> list[str]:
    """Return the names of all methods and variants, the default first."""
    return sorted(registry.names(), key=lambda name: name != DEFAULT)


def __getattr__(name: str) -> Any:
    if name in _TRAINED:
        return type(resolve(_TRAINED[name]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
