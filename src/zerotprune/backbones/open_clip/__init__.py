"""open_clip's image towers: its own `VisionTransformer`, and timm's inside a `TimmModel`.

Blocks and attentions are known by their parts, which have kept their names from release to release:
one with a part that is not known here is refused, for its forward may do what ours would leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import open_clip.transformer as clip
from open_clip.model import resize_pos_embed
from torch import Tensor, nn

from ...cost import Geometry
from ...task import Parts
from ...tokens import Tokens
from ..contract import Backbone, BlockCall
from ..counting import module_macs, norm_values
from ..packed_attention import PackedBlock, packed_shape, why_not
from ..size_weighted import SizeWeighted
from .create import create, own_weights, preprocess, preprocessing_of
from .heads import attention_macs, reads_cls_only, weighs_sizes
from .midway import ClipMidway
from .prefix_only import ClipPrefixOnly
from .size_weighted import ClipSizeWeighted

__all__ = ["create", "own_weights", "take_apart", "tower"]

_AFTER_ATTENTION = ("ln_attn", "ls_1")
_PARTS = {"ln_1", "attn", "ln_2", "mlp", "ls_2", *_AFTER_ATTENTION}
_ATTENTION = {"ln_q", "ln_k", "attn_drop", "ln_inner", "out_proj", "out_drop"}


class _ClipCall(BlockCall):
    def read(
        self, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        """With gradient checkpoints it all comes by position: keys, values and a mask as well."""
        x, *others = args
        if any(other is not None for other in (*others, *given.values())):
            raise ValueError(
                "a pruned model takes no attention mask: it would not fit what is left"
            )
        return x, {}


class ClipBackbone(Backbone):
    call = _ClipCall()
    unserved = ("forward_intermediates",)

    def parts(self, block: nn.Module) -> Parts:
        return PackedBlock(block, "attn", _AFTER_ATTENTION, ("ls_2",))

    @property
    def name(self) -> str:
        """A tower does not know what it was made as."""
        return ""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        model: Any = self.model
        height, width = model.image_size
        return int(model.conv1.in_channels), int(height), int(width)

    @property
    def outputs(self) -> int:
        """None: the tower gives features; classes come from texts that they are compared to."""
        return 0

    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        return preprocess(self.model, size or self.input_shape[1:])

    @property
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        known = preprocessing_of(self.model)
        return known["mean"], known["std"]

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

    def prefix_only(self, otherwise: SizeWeighted | None = None) -> ClipPrefixOnly:
        return ClipPrefixOnly(self.model, otherwise)

    def size_weighted(self, proportional: float) -> ClipSizeWeighted:
        return ClipSizeWeighted(self.model, proportional)

    def midway(self) -> ClipMidway:
        return ClipMidway(self.model)


def tower(model: nn.Module) -> nn.Module:
    """The image tower of a whole CLIP model, and timm's model in a tower that is one."""
    for part in ("visual", "trunk"):
        inner = getattr(model, part, None)
        if isinstance(inner, nn.Module):
            return inner
    return model


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
    return ClipBackbone(model, _geometry(model, blocks), blocks)


def _why_not(block: Any) -> str:
    for module, known in ((block, _PARTS), (getattr(block, "attn", nn.Identity()), _ATTENTION)):
        unknown = {name for name, _ in module.named_children()} - known
        if unknown:
            return f"what its {sorted(unknown)[0]} does is not known to the library"
    attention = getattr(block, "attn", None)
    if getattr(attention, "logit_scale", None) is not None:
        return "its attention goes by cosines, which is not known to the library"
    return why_not(attention)


def _geometry(model: Any, blocks: list[Any]) -> Geometry:
    once, per_token, norms_once, norms_token = attention_macs(model)
    if model.proj is not None:
        once += model.proj.numel()
    after = model.attn_pool is None and not model.final_ln_after_pool
    return Geometry(
        blocks=tuple(packed_shape(block, block.attn, _AFTER_ATTENTION) for block in blocks),
        grid=(int(model.grid_size[0]), int(model.grid_size[1])),
        prefix=1,
        cls=True,
        pools_patches=not reads_cls_only(model),
        weighs_sizes=weighs_sizes(model),
        dim=int(model.conv1.out_channels),
        stem=module_macs(model.conv1, (1, model.conv1.in_channels, *model.image_size)),
        stem_norms=norm_values(model.ln_pre),
        head=once,
        head_token=per_token,
        head_pair=0,
        head_norms=norms_token + (norm_values(model.ln_post) if after else 0),
        head_norms_once=norms_once,
    )
