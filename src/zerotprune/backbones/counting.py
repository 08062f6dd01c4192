"""Count the work in a library's modules: linear layers, norms, and stems of any kind."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def linear_macs(module: nn.Module | None) -> int:
    """Multiply-accumulates of all linear layers, for each token."""
    if module is None:
        return 0
    layers = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return sum(layer.in_features * layer.out_features for layer in layers)


def norm_values(module: nn.Module | None) -> int:
    """Values that all norms put out, for each token; a norm of q or k acts once in each head."""
    if module is None:
        return 0
    total = 0
    for name, norm in module.named_modules():
        if hasattr(norm, "normalized_shape"):
            parent, _, own = name.rpartition(".")
            owner: Any = module.get_submodule(parent)
            times = 1
            if own in ("q_norm", "k_norm"):
                times = owner.num_heads
            if own == "k_norm":
                times = getattr(owner, "num_kv_heads", times)
            total += times * math.prod(norm.normalized_shape)
    return total


def module_macs(module: nn.Module, shape: tuple[int, ...]) -> int:
    """What torch counts when the module runs, on a copy without data."""
    twin = copy.deepcopy(module).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(torch.empty(shape, device="meta", dtype=next(twin.parameters()).dtype))
    return int(counter.get_total_flops() // 2)
