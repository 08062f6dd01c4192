"""timm's models as their own `forward_features` sees them, with other words to the last block."""

from __future__ import annotations

from typing import Any

from ..block_row import BlockRow


def is_last_ours(model: Any) -> bool:
    """Does the last block have a forward that takes a keyword of ours?"""
    return "forward" in model.blocks[-1].__dict__


class WithBlocks:
    """The model with other blocks in it; the last gets these keywords."""

    def __init__(self, model: Any, blocks: Any, **keywords: Any) -> None:
        self._model = model
        self.blocks = BlockRow(blocks, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
