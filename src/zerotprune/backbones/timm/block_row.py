"""timm's models as their own `forward_features` sees them, with other words to the last block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any


def is_last_ours(model: Any) -> bool:
    """Does the last block have a forward that takes a keyword of ours?"""
    return "forward" in model.blocks[-1].__dict__


class WithBlocks:
    """The model with other blocks in it; the last gets these keywords."""

    def __init__(self, model: Any, blocks: Any, **keywords: Any) -> None:
        self._model = model
        self.blocks = _BlockRow(blocks, keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _BlockRow:
    """The blocks in a row, called or gone through one by one: timm does both."""

    def __init__(self, blocks: Any, keywords: dict[str, Any]) -> None:
        self._blocks, self._keywords = blocks, keywords

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        *others, last = self._blocks
        yield from others
        yield functools.partial(last, **self._keywords) if self._keywords else last

    def __call__(self, x: Any) -> Any:
        for block in self:
            x = block(x)
        return x
