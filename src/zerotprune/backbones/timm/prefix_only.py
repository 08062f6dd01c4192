"""timm's models with the last block computed for the prefix tokens alone."""

from __future__ import annotations

from typing import Any

from ..prefix_only import PrefixOnly, is_hooked
from .block_row import WithBlocks, is_last_ours
from .heads import head_reads_prefix_only


class TimmPrefixOnly(PrefixOnly):
    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        if not is_right(model):
            return (self.otherwise or self.whole)(*args, **given)
        seen = WithBlocks(model, model.blocks, prefix_only=True)
        features = type(model).forward_features(seen, *args, **given)
        return model.forward_head(features)


def is_right(model: Any) -> bool:
    """May patch tokens be left out of the last block at this moment?"""
    return head_reads_prefix_only(model) and not _needs_all_tokens(model)


def _needs_all_tokens(model: Any) -> bool:
    """A hook in or around the last block is there to see all tokens; and a last block without a
    forward of ours takes no keyword of ours."""
    last = model.blocks[-1]
    if not is_last_ours(model):
        return True
    return any(is_hooked(module) for module in (model.blocks, model.norm, *last.modules()))
