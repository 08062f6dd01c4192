"""transformers' models set to images of another size: their positions are resampled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .geometry import image_size, patch_layer


def resize_(base: Any, size: int) -> bool:
    """By the library's own interpolation, for good; False where positions cannot be resampled."""
    embeddings = base.embeddings
    table = getattr(embeddings, "position_embeddings", None)
    learned = getattr(embeddings, "position_embedding", None)
    rotary = hasattr(base, "rope_embeddings")
    relative = getattr(base.config, "use_relative_position_bias", False) or getattr(
        base.config, "use_shared_relative_position_bias", False
    )
    resamples = hasattr(embeddings, "interpolate_pos_encoding") and not relative
    if not rotary and (not resamples or (table is None and learned is None)):
        return False
    if image_size(base) == (size, size):
        return True
    if not rotary:
        _resample(embeddings, size, patch_layer(base))
    base.config.image_size = size
    return True


def _resample(embeddings: Any, size: int, patches: Any) -> None:
    side = patches.kernel_size[0]
    count, width = (size // side) ** 2, patches.out_channels
    learned = getattr(embeddings, "position_embedding", None)
    old = embeddings.position_embeddings if learned is None else learned.weight
    prefix = _without_patches(embeddings)
    like = old.new_empty(1, count + prefix, width)
    with torch.no_grad():
        new = embeddings.interpolate_pos_encoding(like, size, size).detach().clone()
    if learned is None:
        embeddings.position_embeddings = nn.Parameter(new, requires_grad=old.requires_grad)
    else:
        learned.weight = nn.Parameter(new.squeeze(0), requires_grad=old.requires_grad)
        learned.num_embeddings = embeddings.num_positions = new.shape[1]
        embeddings.position_ids = torch.arange(new.shape[1], device=old.device).expand(1, -1)
        embeddings.num_patches = count
    told: Any = size if isinstance(getattr(embeddings, "image_size", None), int) else (size, size)
    holders: list[Any] = [embeddings, getattr(embeddings, "patch_embeddings", None)]
    for module in holders:
        if hasattr(module, "image_size"):
            module.image_size = told
        if hasattr(module, "num_patches"):
            module.num_patches = count


def _without_patches(embeddings: Any) -> int:
    """Positions of prefix tokens; registers have none."""
    names = ("cls_token", "class_embedding", "distillation_token")
    return sum(getattr(embeddings, name, None) is not None for name in names)
