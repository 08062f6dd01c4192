"""open_clip's image towers: its `VisionTransformer`, and models of timm inside a `TimmModel`.

Blocks and attentions are recognized by the names of their parts, which have not changed between
releases. A block with any other part is refused, as its forward may do more than ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import open_clip.transformer as clip
from open_clip.model import resize_pos_embed
from torch import Tensor, nn

from ...cost import Geometry
from ...tokens import Tokens
from ..attention import PackedBlock, why_not_packed
from ..contract import NO_MASK, Backbone, BlockCall, Parts, Pool
from ..counting import linear_macs, module_macs, norm_values, packed_shape
from .create import create, own_weights, preprocess, preprocessing_of
from .ending import ClipEnding, is_cascade
from .store import image_tower, read, write

__all__ = [
    "create",
    "featurize_",
    "image_tower",
    "own_weights",
    "read",
    "take_apart",
    "tower",
    "write",
]


#: the modules of a block that act on the output of its attention, if it has them
_AFTER_ATTENTION = ("ln_attn", "ls_1")
_PARTS = {"ln_1", "attn", "ln_2", "mlp", "ls_2", *_AFTER_ATTENTION}
_ATTENTION = {"ln_q", "ln_k", "attn_drop", "ln_inner", "out_proj", "out_drop"}


class _ClipCall(BlockCall):
    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        """Refuse a mask. With gradient checkpointing keys, values and a mask come by position."""
        x, *others = args
        if any(other is not None for other in (*others, *kwargs.values())):
            raise ValueError(NO_MASK)
        return x, {}


class ClipBackbone(Backbone):
    call = _ClipCall()
    ending_class = ClipEnding
    unserved = ("forward_intermediates",)

    def parts(self, block: nn.Module) -> Parts:
        return PackedBlock(block, "attn", _AFTER_ATTENTION, ("ls_2",))

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        attention: Any = block.attn
        if isinstance(attention, nn.MultiheadAttention):
            return [attention]
        # Fused attention does not call its dropout either.
        fused = attention.use_fsdpa and attention.logit_scale is None
        return [attention] if fused else [attention, attention.attn_drop]

    @property
    def name(self) -> str:
        """Empty: an image tower does not store its name."""
        return ""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        model: Any = self.model
        height, width = model.image_size
        return int(model.conv1.in_channels), int(height), int(width)

    @property
    def outputs(self) -> int:
        """0: the tower returns features, and classes come from texts."""
        return 0

    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        return preprocess(self.model, size or self.input_shape[1:])

    @property
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        config = preprocessing_of(self.model)
        return config["mean"], config["std"]

    def class_names(self) -> list[str]:
        return []

    def resize_(self, size: int) -> None:
        model: Any = self.model
        if size % model.patch_size[0] or size % model.patch_size[1]:
            raise ValueError(f"size must be a multiple of {model.patch_size[0]}, got {size}")
        grid = (size // model.patch_size[0], size // model.patch_size[1])
        state = {"visual.positional_embedding": model.positional_embedding.data}
        resize_pos_embed(state, SimpleNamespace(visual=SimpleNamespace(grid_size=grid)))
        model.positional_embedding = nn.Parameter(state["visual.positional_embedding"])
        model.grid_size, model.image_size = grid, (size, size)


def tower(model: nn.Module) -> nn.Module:
    """Return the image tower of a whole CLIP model, or timm's model in a tower that is one."""
    for part in ("visual", "trunk"):
        inner = getattr(model, part, None)
        if isinstance(inner, nn.Module):
            return inner
    return model


def featurize_(model: Any, pool: Pool) -> nn.Module:
    """Return the image tower. "own" is the vector of `encode_image`, in the space of texts; the
    others are not projected."""
    visual: Any = getattr(model, "visual", model)
    if pool == "own":
        if hasattr(visual, "output_tokens"):
            visual.output_tokens = False
        return cast(nn.Module, visual)
    if hasattr(visual, "trunk"):
        from ..timm import featurize_ as featurize_timm_

        return featurize_timm_(visual.trunk, pool)
    if getattr(visual, "attn_pool", None) is not None:
        raise ValueError("the tower's last norm belongs to its attention pooling: use own")
    visual.pool_type, visual.proj = {"cls": "tok", "mean": "avg"}[pool], None
    return cast(nn.Module, visual)


def take_apart(model: Any) -> ClipBackbone:
    name = type(model).__name__
    if not isinstance(model, clip.VisionTransformer):
        raise TypeError(f"cannot prune open_clip's {name}: it is not a VisionTransformer")
    if type(model).forward is not clip.VisionTransformer.forward:
        raise TypeError(f"cannot prune {name}: it has a custom forward")
    if not isinstance(model.patch_dropout, nn.Identity):
        raise TypeError(
            f"cannot prune {name} with patch dropout: it drops random tokens before the blocks"
        )
    blocks = list(model.transformer.resblocks)
    for number, block in enumerate(blocks, start=1):
        if why := _why_not(block):
            raise TypeError(f"cannot prune {name}, block {number}: {why}")
    return ClipBackbone(model, _geometry(model, blocks), blocks)


def _why_not(block: Any) -> str:
    for module, parts in ((block, _PARTS), (getattr(block, "attn", nn.Identity()), _ATTENTION)):
        unknown = {name for name, _ in module.named_children()} - parts
        if unknown:
            return f"its {sorted(unknown)[0]} is not supported"
    attention = getattr(block, "attn", None)
    if getattr(attention, "logit_scale", None) is not None:
        return "cosine attention is not supported"
    return why_not_packed(attention)


def _geometry(model: Any, blocks: list[Any]) -> Geometry:
    ending = ClipEnding(model)
    once, per_token, norms_once, norms_token = _pooling_work(model)
    if model.proj is not None:
        once += model.proj.numel()
    after = model.attn_pool is None and not model.final_ln_after_pool
    return Geometry(
        blocks=tuple(packed_shape(block, block.attn, _AFTER_ATTENTION) for block in blocks),
        grid=(int(model.grid_size[0]), int(model.grid_size[1])),
        prefix=1,
        cls=True,
        pools_patches=not ending.reads_prefix_only(),
        weighs_sizes=ending.weighs_sizes(),
        dim=int(model.conv1.out_channels),
        stem=module_macs(model.conv1, (1, model.conv1.in_channels, *model.image_size)),
        stem_norms=norm_values(model.ln_pre),
        head=once,
        head_token=per_token,
        head_pair=0,
        head_norms=norms_token + (norm_values(model.ln_post) if after else 0),
        head_norms_once=norms_once,
    )


def _pooling_work(model: Any) -> tuple[int, int, int, int]:
    """Count the multiply-accumulates of attention pooling, once and for each token, and the values
    of norms likewise."""
    first, second = model.attn_pool, getattr(model, "attn_pool_contrastive", None)
    if first is None:
        # `ln_post` may come after the pooling
        return 0, 0, norm_values(model.ln_post) if model.final_ln_after_pool else 0, 0
    once, per_token = _pooler_macs(first)
    queries, normed = first.query.shape[0], norm_values(model.ln_post)
    norms_once, norms_token = norm_values(first.ln_q) * queries, norm_values(first.ln_k)
    if second is None:
        return once, per_token, norms_once + normed * queries, norms_token
    norms_once += norm_values(second.ln_q)
    second_once, second_token = _pooler_macs(second)
    if is_cascade(model):
        norms_once += queries * norm_values(second.ln_k)
        return (once + second_once + queries * second_token, per_token, norms_once,
                norms_token + normed)  # fmt: skip
    norms_token += norm_values(second.ln_k) + normed
    return once + second_once, per_token + second_token, norms_once, norms_token


def _pooler_macs(pool: Any) -> tuple[int, int]:
    attention: nn.MultiheadAttention = pool.attn
    queries, width = pool.query.shape
    context = attention.kdim
    once = queries * (width * width + linear_macs(attention.out_proj))
    return once, 2 * context * width + 2 * queries * width
