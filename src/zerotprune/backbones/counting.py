"""Count the MACs of a library's modules: linear layers, norms, stems, packed blocks."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..cost import BlockShape


def linear_macs(module: nn.Module | None) -> int:
    """Count the MACs of all linear layers, per token."""
    if module is None:
        return 0
    layers = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return sum(layer.in_features * layer.out_features for layer in layers)


def norm_values(module: nn.Module | None) -> int:
    """Count the values of all norms, per token; a norm of q or k acts on each head."""
    if module is None:
        return 0
    total = 0
    for path, norm in module.named_modules():
        if hasattr(norm, "normalized_shape"):
            parent, _, name = path.rpartition(".")
            owner: Any = module.get_submodule(parent)
            times = 1
            if name in ("q_norm", "k_norm"):
                times = owner.num_heads
            if name == "k_norm":
                times = getattr(owner, "num_kv_heads", times)
            total += times * math.prod(norm.normalized_shape)
    return total


def module_macs(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the MACs that torch counts, on a copy without data."""
    twin = copy.deepcopy(module).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(torch.empty(shape, device="meta", dtype=next(twin.parameters()).dtype))
    return int(counter.get_total_flops() // 2)


def packed_shape(block: Any, attention: Any, after_attention: tuple[str, ...]) -> BlockShape:
    """Return the cost of a `PackedBlock`."""
    packed, out = attention.in_proj_weight.numel(), linear_macs(attention.out_proj)
    num_heads = int(attention.num_heads)
    q_norm, k_norm = (
        num_heads * norm_values(getattr(attention, name, None)) for name in ("ln_q", "ln_k")
    )
    after = norm_values(getattr(attention, "ln_inner", None))
    after += sum(norm_values(getattr(block, name, None)) for name in after_attention)
    return BlockShape(
        attention=packed + out,
        queries=packed // 3 + out,
        mlp=linear_macs(block.mlp),
        width=attention.in_proj_weight.shape[0] // 3,
        heads=num_heads,
        attention_norms=norm_values(block.ln_1) + q_norm + k_norm + after,
        query_norms=q_norm + after,
        mlp_norms=norm_values(block.ln_2) + norm_values(block.mlp),
    )


def uncountable(layer: nn.Module) -> TypeError:
    """Make the error for layers that cannot be counted, such as quantized ones."""
    return TypeError(
        f"cannot prune this model: the cost of its {type(layer).__name__} layers is unknown; "
        "prune it first and quantize it afterwards"
    )
