"""Patches that are equal in groups, positions as well: the oracle of all that merges and pools.

Tokens of one group stay equal from block to block, and a token that was merged from some of them is
each of them. So merging them changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zerotprune.backbones import backbone


def repeat_first(rows: Tensor, group: int) -> Tensor:
    at = torch.arange(rows.shape[-2], device=rows.device)
    return rows[..., at - at % group, :]


@contextmanager
def equal_patches(model: Any, group: int) -> Iterator[None]:
    """Make every `group` patch tokens in a row equal to the model, inside a `with` block."""
    vit = backbone(model)
    prefix = vit.geometry.prefix

    def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, *rest = args
        return (
            torch.cat((x[:, :prefix], repeat_first(x[:, prefix:], group)), dim=1),
            *rest,
        ), kwargs

    hook = vit.blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
    turned = _replace_rotary(model, group)
    with torch.no_grad():
        for name, table in model.named_parameters():
            if name.endswith("relative_position_bias_table"):
                table[:-3] = table[:1]  # the last three are between CLS and the patches
    yield
    hook.remove()
    for module, name in turned:
        delattr(module, name)


def _replace_rotary(model: Any, group: int) -> list[tuple[Any, str]]:
    """Replace rotary positions, of timm and of transformers; return what to restore."""
    turned = []
    for place, name in (("rope", "get_embed"), ("rope_embeddings", "forward")):
        module = getattr(model, place, None)
        if module is not None:
            setattr(module, name, _grouped(getattr(module, name), group))
            turned.append((module, name))
    return turned


def _grouped(function: Any, group: int) -> Any:
    def grouped(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if isinstance(out, Tensor):
            return repeat_first(out, group)
        return tuple(repeat_first(rows, group) for rows in out)

    return grouped
