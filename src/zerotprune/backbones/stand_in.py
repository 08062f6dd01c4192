"""What is put on a model while it is pruned: a stand-in for its forward, and refusals."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MethodType
from typing import Any, NoReturn


@dataclass(frozen=True, eq=False)
class StandIn(ABC):
    """Stands in for a model's forward.

    It holds the model and no state, and looks at each call whether what it does is right: heads
    are changed and hooks are put on after pruning as well.
    """

    model: Any

    @abstractmethod
    def __call__(self, *args: Any, **given: Any) -> Any: ...

    def whole(self, *args: Any, **given: Any) -> Any:
        """The model's own forward."""
        return type(self.model).forward(self.model, *args, **given)


def as_forward(stand_in: StandIn) -> functools.partial[Any]:
    """It as the model's forward: a partial, which `torch.export` takes and an object it does not,
    with the signature of the model's own forward, after which it names the inputs."""
    forward, own = functools.partial(_forward, stand_in), type(stand_in.model).forward
    signature = inspect.signature(MethodType(own, stand_in.model))
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def stand_in_of(model: Any) -> StandIn | None:
    """What stands in for the model's forward, if anything does that was put on by us."""
    forward = model.__dict__.get("forward")
    if isinstance(forward, functools.partial) and forward.func is _forward:
        found: StandIn = forward.args[0]
        return found
    return None


def _forward(stand_in: StandIn, *args: Any, **given: Any) -> Any:
    return stand_in(*args, **given)


def refused(name: str, why: str) -> functools.partial[NoReturn]:
    """In place of a method of the model's that cannot serve: it says why."""
    return functools.partial(_refuse, name, why)


def is_refused(method: object) -> bool:
    return isinstance(method, functools.partial) and method.func is _refuse


def _refuse(name: str, why: str, *args: Any, **given: Any) -> NoReturn:
    raise ValueError(f"{name} {why}")
