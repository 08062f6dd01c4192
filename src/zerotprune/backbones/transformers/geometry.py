"""The geometry of transformers' models: what each block, the stem and the head cost."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...cost import BlockShape, Geometry
from ..counting import linear_macs, module_macs, norm_values
from .attention import attention_of, output_layer, role
from .families import base_of, blocks_of, is_map, pooler_of, reads_of


def geometry_of(model: Any) -> Geometry:
    base = base_of(model)
    prefix, dim, grid = prefix_of(base), int(base.config.hidden_size), grid_of(base)
    reads, held = reads_of(model), pooler_of(base)
    once = sum(linear_macs(child) for child in model.children() if child is not base)
    once = 0 if base is model else once
    if not isinstance(getattr(model, "fpn", nn.Identity()), nn.Identity):
        # BEiT's pyramid, of four feature maps
        once += module_macs(model.fpn, (4, 1, dim, *grid))
    once_norms = per_token = 0
    if held is not None:
        pooler = held[1]
        once += linear_macs(pooler)
        once_norms += norm_values(pooler)
        if is_map(pooler):
            once += dim * dim  # the probe's query
            per_token = 2 * dim * dim + 2 * dim
    norm = role(base, "layernorm", "norm", "post_layernorm")
    every = norm_values(norm)
    if hasattr(base, "pre_layrnorm"):  # CLIP's last norm is for the CLS token alone
        once_norms, every = once_norms + every, 0
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
        head_norms=every,
        head_norms_once=once_norms,
    )


def prefix_of(base: Any) -> int:
    """CLS, distillation and register tokens."""
    embeddings = base.embeddings
    single = ("cls_token", "class_embedding", "distillation_token")
    count = sum(getattr(embeddings, name, None) is not None for name in single)
    registers = getattr(embeddings, "register_tokens", None)
    return count + (0 if registers is None else int(registers.shape[1]))


def patch_layer(base: Any) -> Any:
    """The layer that makes tokens of patches; SigLIP 2 has a linear one."""
    layers = (
        each for each in base.embeddings.modules() if isinstance(each, (nn.Conv2d, nn.Linear))
    )
    return next(layers)


def image_size(base: Any) -> tuple[int, int]:
    """Height and width. SigLIP 2 is told how many patches there are, and they make a square."""
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
    whole = linear_macs(attention)
    if not whole:
        kind = type(attention.q_proj).__name__
        raise TypeError(
            f"cannot prune this model: what its {kind} layers cost is not known; prune it first, "
            "and quantise it then"
        )
    width = int(output_layer(attention).in_features)
    before, after = (
        norm_values(role(block, *names))
        for names in (
            ("layernorm_before", "norm1", "layer_norm1"),
            ("layernorm_after", "norm2", "layer_norm2"),
        )
    )
    return BlockShape(
        attention=whole,
        queries=queries,
        mlp=linear_macs(block.mlp),
        width=width,
        heads=width // int(attention.head_dim),
        attention_norms=before,
        query_norms=0,
        mlp_norms=after,
    )
