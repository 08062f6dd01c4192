"""How LV-ViT ends: one head reads CLS, the other takes a maximum over the patches."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from ...shapes import Float
from ...tokens import Tokens
from ..ending import BlockRow, Ending, Proxy
from .model import predict


class LVViTEnding(Ending):
    """Leave padding out of the maximum over the patches."""

    def last_block(self) -> nn.Module:
        block: nn.Module = self.model.blocks[-1]
        return block

    def around(self) -> tuple[nn.Module, ...]:
        return (self.model.norm,)

    def reads_prefix_only(self) -> bool:
        return False

    def weighs_sizes(self) -> bool:
        return True

    def run(self, last: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model = self.model
        seen = Proxy(
            model, blocks=BlockRow(model.blocks, last), aux_head=self._second_head(last["left"])
        )
        return type(model).forward(seen, *args, **kwargs)

    def enter(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model, last = self.model, self.last_kwargs()
        features = model.norm(BlockRow(list(model.blocks)[block - 1 :], last)(x))
        if "left" not in last:
            return predict(model, features)
        return predict(Proxy(model, aux_head=self._second_head(last["left"])), features)

    def _second_head(self, left: list[Tokens]) -> functools.partial[Tensor]:
        return functools.partial(_without_padding, self.model.aux_head, left)


def _without_padding(head: Any, left: list[Tokens], patches: Tensor) -> Tensor:
    """Return the logits of a head, with padding masked for the maximum."""
    logits: Tensor = head(patches)
    valid = left[-1].valid
    if valid is None:
        return logits
    return logits.masked_fill(~valid[:, 1:].unsqueeze(-1), float("-inf"))
