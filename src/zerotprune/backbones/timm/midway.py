"""timm's VisionTransformer family entered in the middle."""

from __future__ import annotations

from typing import Any

import timm.models.vision_transformer as vit
from torch import Tensor

from ...shapes import Float
from ..midway import Midway
from ..prefix_only import is_prefix_only
from .prefix_only import BlockRow, is_right


def enters(model: Any) -> bool:
    """Is it sure that all a block gets is the residual stream? Other families hand it positions
    as well, and a model with a forward of its own may do anything."""
    kind, own = type(model), model.__dict__
    known = kind.forward is vit.VisionTransformer.forward
    known = known and kind.forward_features is vit.VisionTransformer.forward_features
    foreign = "forward" in own and not is_prefix_only(own["forward"])
    return known and not foreign and "forward_features" not in own


class TimmMidway(Midway):
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model = self.model
        prefix_only = is_prefix_only(model.__dict__.get("forward")) and is_right(model)
        features = type(model).forward_features(_Entered(model, block, prefix_only), x)
        outputs: Tensor = model.forward_head(features)
        return outputs


class _Entered:
    """The model as its own `forward_features` sees it: nothing is done before the block."""

    def __init__(self, model: Any, block: int, prefix_only: bool) -> None:
        self._model = model
        self.blocks = BlockRow(list(model.blocks)[block - 1 :], prefix_only)
        self.patch_embed = self._pos_embed = self.patch_drop = self.norm_pre = _unchanged
        self.grad_checkpointing = False  # it wants an nn.Sequential, and there is no gradient here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _unchanged(x: Tensor) -> Tensor:
    return x
