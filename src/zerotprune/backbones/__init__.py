"""Backbones: how each library's Vision Transformer comes apart. A library is imported only when
one of its models is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

from torch import nn

from ..block import Parts
from ..cost import Geometry
from .midway import Tail
from .prefix_only import Shortcut

_LIBRARIES = {"timm": ".timm"}


@runtime_checkable
class Backbone(Protocol):
    """A model, seen as a row of blocks."""

    geometry: Geometry
    blocks: Sequence[nn.Module]

    def parts(self, block: nn.Module) -> Parts: ...

    def shortcut(self) -> Shortcut:
        """What stands in for the model's forward where its head reads the prefix tokens alone."""

    def tail(self) -> Tail | None:
        """How the model is run from the middle; None where its blocks need more than tokens."""


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `DistributedDataParallel`, `DataParallel` or `torch.compile`."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def backbone(model: object) -> Backbone:
    """Take a model apart, or say in one sentence why it cannot be pruned."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    for kind in type(model).__mro__:
        home = _LIBRARIES.get(kind.__module__.partition(".")[0])
        if home is not None:
            found: Backbone = import_module(home, __name__).take_apart(model)
            return found
    raise TypeError(f"cannot prune {type(model).__name__}: it is not a Vision Transformer of timm")
