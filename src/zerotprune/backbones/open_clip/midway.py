"""open_clip's towers entered in the middle."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...shapes import Float
from ...tokens import Tokens
from ..block_row import BlockRow, Through
from ..midway import Midway
from ..stand_in import stand_in_of
from .prefix_only import ClipPrefixOnly, is_right
from .size_weighted import ClipSizeWeighted


class ClipMidway(Midway):
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model, stand_in = self.model, stand_in_of(self.model)
        keywords: dict[str, Any] = {}
        exchanged: dict[str, Any] = {}
        if isinstance(stand_in, ClipPrefixOnly):
            if is_right(model):
                keywords = {"prefix_only": True}
            else:
                stand_in = stand_in.otherwise
        if isinstance(stand_in, ClipSizeWeighted):
            left: list[Tokens] = []
            keywords, exchanged = {"left": left}, stand_in.exchanged(left)
        row = BlockRow(list(model.transformer.resblocks)[block - 1 :], **keywords)
        transformer = Through(model.transformer, resblocks=row)
        entered = Through(model, transformer=transformer, _embeds=_unchanged, **exchanged)
        outputs: Tensor = type(model).forward(entered, x)
        return outputs


def _unchanged(x: Tensor) -> Tensor:
    return x
