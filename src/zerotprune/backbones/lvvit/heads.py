"""LV-ViT's two heads over tokens of which some may be padding, and the model entered midway."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...shapes import Float
from ...tokens import Tokens
from ..block_row import BlockRow, Through
from ..midway import Midway
from ..size_weighted import SizeWeighted
from ..stand_in import stand_in_of
from .model import predict


class LVViTSizeWeighted(SizeWeighted):
    """A merged token counts for no more than one in the maximum, so only padding is left out."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        if "forward" not in model.blocks[-1].__dict__:
            return self.whole(*args, **given)
        left: list[Tokens] = []
        row = BlockRow(model.blocks, left=left)
        seen = Through(model, blocks=row, aux_head=_Unpadded(model.aux_head, left))
        return type(model).forward(seen, *args, **given)


class LVViTMidway(Midway):
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model, blocks = self.model, list(self.model.blocks)[block - 1 :]
        if stand_in_of(model) is None:
            return predict(model, model.norm(BlockRow(blocks)(x)))
        left: list[Tokens] = []
        features = model.norm(BlockRow(blocks, left=left)(x))
        return predict(Through(model, aux_head=_Unpadded(model.aux_head, left)), features)


class _Unpadded:
    """The second head, with no answer from padding that a maximum could take."""

    def __init__(self, head: Any, left: list[Tokens]) -> None:
        self.head, self.left = head, left

    def __call__(self, patches: Tensor) -> Tensor:
        answers: Tensor = self.head(patches)
        valid = self.left[-1].valid
        if valid is None:
            return answers
        return answers.masked_fill(~valid[:, 1:].unsqueeze(-1), float("-inf"))
