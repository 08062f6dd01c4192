"""timm's VisionTransformer family entered in the middle."""

from __future__ import annotations

from typing import Any

import timm.models.vision_transformer as vit
from torch import Tensor

from ...shapes import Float
from ...tokens import Tokens
from ..midway import Midway
from ..stand_in import stand_in_of
from .block_row import WithBlocks
from .prefix_only import TimmPrefixOnly, is_right
from .size_weighted import TimmSizeWeighted


def enters(model: Any) -> bool:
    """Is it sure that all a block gets is the residual stream? Other families hand it positions
    as well, and a model with a forward of its own may do anything."""
    kind, own = type(model), model.__dict__
    known = kind.forward is vit.VisionTransformer.forward
    known = known and kind.forward_features is vit.VisionTransformer.forward_features
    foreign = "forward" in own and stand_in_of(model) is None
    return known and not foreign and "forward_features" not in own


class TimmMidway(Midway):
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model, stand_in = self.model, stand_in_of(self.model)
        keywords: dict[str, Any] = {}
        outputs: Tensor
        if isinstance(stand_in, TimmPrefixOnly):
            if is_right(model):
                keywords = {"prefix_only": True}
            else:
                stand_in = stand_in.otherwise
        if not isinstance(stand_in, TimmSizeWeighted):
            features = type(model).forward_features(_Entered(model, block, keywords), x)
            outputs = model.forward_head(features)
            return outputs
        left: list[Tokens] = []
        features = type(model).forward_features(_Entered(model, block, {"left": left}), x)
        outputs = stand_in.head(features, left)
        return outputs


class _Entered(WithBlocks):
    """The model as its own `forward_features` sees it: nothing is done before the block."""

    def __init__(self, model: Any, block: int, keywords: dict[str, Any]) -> None:
        super().__init__(model, list(model.blocks)[block - 1 :], **keywords)
        self.patch_embed = self._pos_embed = self.patch_drop = self.norm_pre = _unchanged
        self.grad_checkpointing = False  # it wants an nn.Sequential, and there is no gradient here


def _unchanged(x: Tensor) -> Tensor:
    return x
