"""timm's VisionTransformer family entered in the middle."""

from __future__ import annotations

from typing import Any

import timm.models.vision_transformer as vit
from torch import Tensor

from ...shapes import Float
from ..midway import Tail
from ..prefix_only import is_entrance
from .prefix_only import Row, goes_short


def enters(model: Any) -> bool:
    """Is it sure that all a block gets is the residual stream? Other families hand it positions
    as well, and a model with a forward of its own may do anything."""
    kind, own = type(model), model.__dict__
    known = kind.forward is vit.VisionTransformer.forward
    known = known and kind.forward_features is vit.VisionTransformer.forward_features
    foreign = "forward" in own and not is_entrance(own["forward"])
    return known and not foreign and "forward_features" not in own


class TimmTail(Tail):
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model = self.model
        short = is_entrance(model.__dict__.get("forward")) and goes_short(model)
        features = type(model).forward_features(_Entered(model, block, short), x)
        found: Tensor = model.forward_head(features)
        return found


class _Entered:
    """The model as its own `forward_features` sees it: nothing is done before the block."""

    def __init__(self, model: Any, block: int, short: bool) -> None:
        self._model = model
        self.blocks = Row(list(model.blocks)[block - 1 :], short)
        self.patch_embed = self._pos_embed = self.patch_drop = self.norm_pre = _unchanged
        self.grad_checkpointing = False  # it wants an nn.Sequential, and there is no gradient here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _unchanged(x: Tensor) -> Tensor:
    return x
