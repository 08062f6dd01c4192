"""Zero-TPrune: faster pre-trained Vision Transformers by pruning tokens, with no training.

The public names are imported on first use, so that ``import zerotprune`` and the command line's
``--help`` answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import methods
    from .methods import ZeroTPrune
    from .pruning import gmacs, prune_, restore_, schedule_for
    from .schedule import Schedule, Stage
    from .tracing import trace

__version__ = "0.1.0"
__all__ = [
    "Schedule",
    "Stage",
    "ZeroTPrune",
    "gmacs",
    "methods",
    "prune_",
    "restore_",
    "schedule_for",
    "trace",
]

_HOME = {
    "Schedule": "schedule",
    "Stage": "schedule",
    "ZeroTPrune": "methods",
    "gmacs": "pruning",
    "prune_": "pruning",
    "restore_": "pruning",
    "schedule_for": "pruning",
    "trace": "tracing",
}


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module(".methods", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'zerotprune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
