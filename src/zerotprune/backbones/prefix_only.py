"""What stands in for a model's forward, so that its last block runs for the prefix tokens alone."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MethodType
from typing import Any

from torch import nn


@dataclass(frozen=True, eq=False)
class PrefixOnly(ABC):
    """A model's forward that asks its last block, by the keyword `prefix_only`, for the prefix
    tokens alone.

    It holds the model and no state, and looks at each call whether that is right: heads
    are changed and hooks are put on after pruning as well.
    """

    model: Any

    @abstractmethod
    def __call__(self, *args: Any, **given: Any) -> Any: ...

    def whole(self, *args: Any, **given: Any) -> Any:
        """The model's own forward."""
        return type(self.model).forward(self.model, *args, **given)


def as_forward(prefix_only: PrefixOnly) -> functools.partial[Any]:
    """It as the model's forward: a partial, which `torch.export` takes and an object it does not,
    with the signature of the model's own forward, after which it names the inputs."""
    forward, own = functools.partial(_forward, prefix_only), type(prefix_only.model).forward
    signature = inspect.signature(MethodType(own, prefix_only.model))
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def is_prefix_only(forward: object) -> bool:
    """Was this forward put on by us?"""
    return isinstance(forward, functools.partial) and forward.func is _forward


def _forward(prefix_only: PrefixOnly, *args: Any, **given: Any) -> Any:
    return prefix_only(*args, **given)


def is_hooked(module: nn.Module) -> bool:
    """Is there a hook on the module itself?"""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any(map(bool, (*hooks, module._backward_hooks, module._backward_pre_hooks)))
