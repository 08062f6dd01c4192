"""Faster pre-trained Vision Transformers by merging and pruning tokens, with no training.

The public names are imported on first use, so that ``import zerotprune`` and the command line's
``--help`` answer at once.
"""

from __future__ import annotations

from .registry import LOADERS

TYPE_CHECKING = False  # importing typing would take as long as everything else here
if TYPE_CHECKING:
    from typing import Any

    from . import methods
    from .budgets import Budget, schedule_for
    from .embed.embedder import Embedder
    from .export.exporting import export_model
    from .method import Method
    from .methods import ZeroTPrune
    from .pruning import gmacs, prune_, pruned, restore_
    from .saving import load, push_to_hub, save
    from .schedule import Schedule, Stage
    from .tracing import image_tokens, patches_left, trace

__version__ = "0.2.0"

_HOME = {
    "Budget": "budgets",
    "Embedder": "embed.embedder",
    "Method": "method",
    "Schedule": "schedule",
    "Stage": "schedule",
    "ZeroTPrune": "methods",
    "export_model": "export.exporting",
    "gmacs": "pruning",
    "image_tokens": "tracing",
    "load": "saving",
    "patches_left": "tracing",
    "prune_": "pruning",
    "pruned": "pruning",
    "push_to_hub": "saving",
    "restore_": "pruning",
    "save": "saving",
    "schedule_for": "budgets",
    "trace": "tracing",
}
__all__ = [
    "Budget",
    "Embedder",
    "Method",
    "Schedule",
    "Stage",
    "ZeroTPrune",
    "export_model",
    "gmacs",
    "image_tokens",
    "load",
    "methods",
    "patches_left",
    "prune_",
    "pruned",
    "push_to_hub",
    "restore_",
    "save",
    "schedule_for",
    "trace",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "methods":
        return import_module(".methods", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'zerotprune' has no attribute {name!r}")


def _load_methods() -> None:
    """Import the built-in methods: they are found by name whichever module is imported first."""
    from . import methods  # noqa: F401


LOADERS.append(_load_methods)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
