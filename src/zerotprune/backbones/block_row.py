"""A row of blocks whose last one gets other words, and modules seen with such a row in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any


class BlockRow:
    """Blocks in a row, called or gone through one by one: libraries do both."""

    def __init__(self, blocks: Any, **keywords: Any) -> None:
        self._blocks, self._keywords = blocks, keywords

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        *others, last = self._blocks
        yield from others
        yield functools.partial(last, **self._keywords) if self._keywords else last

    def __call__(self, x: Any) -> Any:
        for block in self:
            x = block(x)
        return x


class Through:
    """A module as its own methods see it, with some of its attributes exchanged. The module itself
    stays as it is."""

    def __init__(self, module: Any, **exchanged: Any) -> None:
        self._module = module
        for name, other in exchanged.items():  # torch 2.11's compiler cannot follow an update
            setattr(self, name, other)

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self._module), name, None)
        if isinstance(method, FunctionType) and name not in self._module.__dict__:
            return functools.partial(method, self)  # it has to see what was exchanged as well
        return getattr(self._module, name)

    def __call__(self, *args: Any, **given: Any) -> Any:
        return type(self._module).forward(self, *args, **given)
