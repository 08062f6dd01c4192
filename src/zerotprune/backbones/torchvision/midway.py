"""torchvision's models entered in the middle."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...shapes import Float
from ..block_row import BlockRow
from ..midway import Midway
from ..stand_in import stand_in_of
from .prefix_only import is_right


class TorchvisionMidway(Midway):
    def __call__(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model = self.model
        short = stand_in_of(model) is not None and is_right(model)
        keywords: dict[str, Any] = {"prefix_only": True} if short else {}
        blocks = list(model.encoder.layers)[block - 1 :]
        features = model.encoder.ln(BlockRow(blocks, **keywords)(x))
        outputs: Tensor = model.heads(features[:, 0])
        return outputs
