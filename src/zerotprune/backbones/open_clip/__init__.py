"""open_clip's image towers: its own `VisionTransformer`, and timm's inside a `TimmModel`.

Blocks and attentions are recognised by their parts, whose names have not changed from release to
release. One with another part is refused: its forward may do what ours would leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import open_clip.transformer as clip
from open_clip.model import resize_pos_embed
from torch import Tensor, nn

from ...tokens import Tokens
from ..attention import PackedBlock, why_not_packed
from ..contract import NO_MASK, Backbone, BlockCall, Parts, Pool
from .create import create, own_weights, preprocess, preprocessing_of
from .ending import ClipEnding
from .geometry import AFTER_ATTENTION, geometry_of
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

_PARTS = {"ln_1", "attn", "ln_2", "mlp", "ls_2", *AFTER_ATTENTION}
_ATTENTION = {"ln_q", "ln_k", "attn_drop", "ln_inner", "out_proj", "out_drop"}


class _ClipCall(BlockCall):
    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        """With gradient checkpointing keys, values and a mask come by position."""
        x, *others = args
        if any(other is not None for other in (*others, *kwargs.values())):
            raise ValueError(NO_MASK)
        return x, {}


class ClipBackbone(Backbone):
    call = _ClipCall()
    ending_class = ClipEnding
    unserved = ("forward_intermediates",)

    def parts(self, block: nn.Module) -> Parts:
        return PackedBlock(block, "attn", AFTER_ATTENTION, ("ls_2",))

    @property
    def name(self) -> str:
        """Empty: a tower does not know its name."""
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
    """Return the image tower: its own vector is that of `encode_image`, which shares a space with
    texts. The others are not projected to it."""
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
        raise TypeError(f"cannot prune {name}: it runs its blocks in a forward of its own")
    if not isinstance(model.patch_dropout, nn.Identity):
        raise TypeError(
            f"cannot prune {name} with patch dropout: it drops tokens by chance before we see them"
        )
    blocks = list(model.transformer.resblocks)
    for number, block in enumerate(blocks, start=1):
        if why := _why_not(block):
            raise TypeError(f"cannot prune {name}, block {number}: {why}")
    return ClipBackbone(model, geometry_of(model, blocks), blocks)


def _why_not(block: Any) -> str:
    for module, parts in ((block, _PARTS), (getattr(block, "attn", nn.Identity()), _ATTENTION)):
        unknown = {name for name, _ in module.named_children()} - parts
        if unknown:
            return f"its {sorted(unknown)[0]} is not supported"
    attention = getattr(block, "attn", None)
    if getattr(attention, "logit_scale", None) is not None:
        return "its attention goes by cosines, which is not supported"
    return why_not_packed(attention)
