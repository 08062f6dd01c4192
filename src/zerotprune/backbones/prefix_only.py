"""What stands in for a model's forward, so that its last block runs for the prefix tokens alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .size_weighted import SizeWeighted
from .stand_in import StandIn


@dataclass(frozen=True, eq=False)
class PrefixOnly(StandIn):
    """A model's forward that asks its last block, by the keyword `prefix_only`, for the prefix
    tokens alone."""

    #: what to do where the head was changed and reads patch tokens, some of which are merged
    otherwise: SizeWeighted | None = None


def is_hooked(module: nn.Module) -> bool:
    """Is there a hook on the module itself?"""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any(map(bool, (*hooks, module._backward_hooks, module._backward_pre_hooks)))
