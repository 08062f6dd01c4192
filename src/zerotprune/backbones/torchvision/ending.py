"""How torchvision's models end: their head reads the CLS token alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...shapes import Float
from ..ending import BlockRow, Ending, Proxy


class TorchvisionEnding(Ending):
    def last_block(self) -> nn.Module:
        block: nn.Module = self.model.encoder.layers[-1]
        return block

    def around(self) -> tuple[nn.Module, ...]:
        encoder = self.model.encoder
        return encoder, encoder.layers, encoder.ln

    def reads_prefix_only(self) -> bool:
        return "forward" not in self.model.encoder.__dict__

    def weighs_sizes(self) -> bool:
        return self.reads_prefix_only()  # the encoder's own forward is all that is known

    def run(self, last: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model = self.model
        encoder = Proxy(model.encoder, layers=BlockRow(model.encoder.layers, last))
        return type(model).forward(Proxy(model, encoder=encoder), *args, **kwargs)

    def enter(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model = self.model
        row = BlockRow(list(model.encoder.layers)[block - 1 :], self.last_kwargs())
        outputs: Tensor = model.heads(model.encoder.ln(row(x))[:, 0])
        return outputs
