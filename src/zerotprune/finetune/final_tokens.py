"""What leaves a model's last block: the patch tokens, and where in the grid each of them stood."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..shapes import Float, Int
from ..surgery import pruned_block
from ..tokens import Tokens


class FinalTokens(NamedTuple):
    """The patch tokens in the end."""

    x: Float[Tensor, "batch left width"]
    source: Int[Tensor, "batch left"]  # each one's place in the original grid
    weight: Float[Tensor, "batch left"]  # how many patches it stands for; 0: padding


class Watch:
    """Looks at the last block of one model, whatever it is pruned by.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5).eval()
    >>> watch = Watch(ztp.prune_(model, cost=0.7, compute="all"))
    >>> with watch.looking() as seen:
    ...     logits = model(torch.zeros(1, 3, 160, 160))
    >>> seen[-1].x.shape[1] < 100, float(seen[-1].weight.sum())
    (True, 100.0)
    """

    def __init__(self, model: nn.Module) -> None:
        vit = backbone(model)
        self._last, self._prefix = vit.blocks[-1], vit.geometry.prefix

    @contextmanager
    def looking(self) -> Iterator[list[FinalTokens]]:
        """While it is open, note the tokens of every call."""
        seen: list[FinalTokens] = []

        def ask(block: nn.Module, args: Any, given: dict[str, Any]) -> Any:
            # A head that pools has asked already.
            return None if pruned_block(block) is None else (args, {"left": [], **given})

        def look(_: nn.Module, args: Any, given: dict[str, Any], out: Any) -> None:
            left: list[Tokens] | None = given.get("left")
            tokens = left[-1] if left else Tokens.of(out, self._prefix)
            seen.append(self._final(tokens))

        hooks = (
            self._last.register_forward_pre_hook(ask, with_kwargs=True),
            self._last.register_forward_hook(look, with_kwargs=True),
        )
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()

    def _final(self, tokens: Tokens) -> FinalTokens:
        x, weight = tokens.x[:, self._prefix :], tokens.weight()
        counted = torch.ones_like(x[..., 0]) if weight is None else weight[:, self._prefix :]
        return FinalTokens(x, tokens.source, counted)
