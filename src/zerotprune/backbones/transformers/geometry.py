"""The geometry of transformers' models: grid, cost, and other image sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...cost import BlockShape, Geometry
from ..counting import linear_macs, module_macs, norm_values, uncountable
from .blocks import attention_of, norm_after, norm_before, output_layer, role
from .families import base_of, blocks_of, is_map, pooler_of, reads_of


def geometry_of(model: Any) -> Geometry:
    base = base_of(model)
    prefix, dim, grid = prefix_of(base), int(base.config.hidden_size), grid_of(base)
    reads, named = reads_of(model), pooler_of(base)
    once = sum(linear_macs(child) for child in model.children() if child is not base)
    once = 0 if base is model else once
    if not isinstance(getattr(model, "fpn", nn.Identity()), nn.Identity):
        # BEiT's pyramid, of four feature maps
        once += module_macs(model.fpn, (4, 1, dim, *grid))
    once_norms = per_token = 0
    if named is not None:
        _, pooler = named
        once += linear_macs(pooler)
        once_norms += norm_values(pooler)
        if is_map(pooler):
            once += dim * dim  # the probe's query
            per_token = 2 * dim * dim + 2 * dim
    norm = role(base, "layernorm", "norm", "post_layernorm")
    token_norms = norm_values(norm)
    if hasattr(base, "pre_layrnorm"):  # CLIP's last norm is for the CLS token alone
        once_norms, token_norms = once_norms + token_norms, 0
    return Geometry(
        blocks=tuple(_shape(block) for block in blocks_of(model)),
        grid=grid,
        prefix=prefix,
        cls=prefix > 0,
        pools_patches=reads != "prefix",
        weighs_sizes=reads not in ("prefix", "grid"),
        needs_grid=reads == "grid",
        dim=dim,
        stem=grid[0] * grid[1] * int(patch_layer(base).weight.numel()),
        stem_norms=norm_values(getattr(base, "pre_layrnorm", None)),
        head=once,
        head_token=per_token,
        head_pair=0,
        head_norms=token_norms,
        head_norms_once=once_norms,
    )


_SINGLE = ("cls_token", "class_embedding", "distillation_token")


def _positioned_prefix(embeddings: Any) -> int:
    """Count the prefix tokens that have positions."""
    return sum(getattr(embeddings, name, None) is not None for name in _SINGLE)


def prefix_of(base: Any) -> int:
    """Count CLS, distillation and register tokens."""
    registers = getattr(base.embeddings, "register_tokens", None)
    count = 0 if registers is None else int(registers.shape[1])
    return count + _positioned_prefix(base.embeddings)


def patch_layer(base: Any) -> Any:
    """Return the layer that makes tokens of patches; SigLIP 2 has a linear one."""
    modules = base.embeddings.modules()
    return next(layer for layer in modules if isinstance(layer, (nn.Conv2d, nn.Linear)))


def image_size(base: Any) -> tuple[int, int]:
    """Return height and width. SigLIP 2's config has the number of patches, of a square."""
    config = base.config
    size = getattr(config, "image_size", None)
    if size is None:
        size = int(config.num_patches**0.5) * config.patch_size
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def grid_of(base: Any) -> tuple[int, int]:
    side = base.config.patch_size
    down, across = (side, side) if isinstance(side, int) else side
    height, width = image_size(base)
    return height // down, width // across


def _shape(block: Any) -> BlockShape:
    attention = attention_of(block)
    queries = linear_macs(attention.q_proj) + linear_macs(output_layer(attention))
    macs = linear_macs(attention)
    if not macs:
        raise uncountable(attention.q_proj)
    width = int(output_layer(attention).in_features)
    return BlockShape(
        attention=macs,
        queries=queries,
        mlp=linear_macs(block.mlp),
        width=width,
        heads=width // int(attention.head_dim),
        attention_norms=norm_values(norm_before(block)),
        query_norms=0,
        mlp_norms=norm_values(norm_after(block)),
    )


def resize_(base: Any, size: int) -> bool:
    """Resample the positions by the library's interpolation; return False if that is impossible."""
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
    prefix = _positioned_prefix(embeddings)
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
    square = isinstance(getattr(embeddings, "image_size", None), int)
    modules: list[Any] = [embeddings, getattr(embeddings, "patch_embeddings", None)]
    for module in modules:
        if hasattr(module, "image_size"):
            module.image_size = size if square else (size, size)
        if hasattr(module, "num_patches"):
            module.num_patches = count
