"""timm's models with the last block computed for the prefix tokens alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import timm.models.beit as beit
import timm.models.deit as deit
import timm.models.eva as eva
import timm.models.vision_transformer as vit

from ..prefix_only import PrefixOnly, is_hooked

_FORWARDS = (vit.VisionTransformer.forward, eva.Eva.forward, beit.Beit.forward)
_HEADS = (
    vit.VisionTransformer.forward_head,
    deit.VisionTransformerDistilled.forward_head,
    eva.Eva.forward_head,
    beit.Beit.forward_head,
)


def head_reads_prefix_only(model: Any) -> bool:
    """Is it sure that the model's head reads no patch token?"""
    kind, own = type(model), model.__dict__
    known = kind.forward in _FORWARDS and kind.forward_head in _HEADS
    replaced = any(name in own for name in ("forward_features", "forward_head", "pool"))
    pools = model.global_pool != "token" or getattr(model, "attn_pool", None) is not None
    return known and not replaced and not pools and model.num_prefix_tokens > 0


class TimmPrefixOnly(PrefixOnly):
    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        if not is_right(model):
            return self.whole(*args, **given)
        features = type(model).forward_features(_Seen(model), *args, **given)
        return model.forward_head(features)


def is_right(model: Any) -> bool:
    """May patch tokens be left out of the last block at this moment?"""
    return head_reads_prefix_only(model) and not _needs_all_tokens(model)


def _needs_all_tokens(model: Any) -> bool:
    """A hook in or around the last block is there to see all tokens; and a last block without a
    forward of ours takes no keyword of ours."""
    last = model.blocks[-1]
    if "forward" not in last.__dict__:
        return True
    return any(is_hooked(module) for module in (model.blocks, model.norm, *last.modules()))


class _Seen:
    """The model as its own `forward_features` sees it, but for the last of its blocks."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.blocks = BlockRow(model.blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class BlockRow:
    """The blocks in a row, called or gone through one by one: timm does both."""

    def __init__(self, blocks: Any, prefix_only: bool = True) -> None:
        self._blocks, self._prefix_only = blocks, prefix_only

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        *others, last = self._blocks
        yield from others
        yield functools.partial(last, prefix_only=True) if self._prefix_only else last

    def __call__(self, x: Any) -> Any:
        for block in self:
            x = block(x)
        return x
