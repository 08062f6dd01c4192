"""open_clip's towers with the last block computed for the CLS token alone."""

from __future__ import annotations

from typing import Any

from ..block_row import BlockRow, Through
from ..prefix_only import PrefixOnly, is_hooked
from .heads import reads_cls_only


class ClipPrefixOnly(PrefixOnly):
    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        if not is_right(model):
            return (self.otherwise or self.whole)(*args, **given)
        return type(model).forward(with_row(model, prefix_only=True), *args, **given)


def with_row(model: Any, /, exchanged: dict[str, Any] | None = None, **keywords: Any) -> Through:
    """The tower with these words to its last block, and other attributes exchanged."""
    row = BlockRow(model.transformer.resblocks, **keywords)
    transformer = Through(model.transformer, resblocks=row)
    return Through(model, transformer=transformer, **(exchanged or {}))


def is_last_ours(model: Any) -> bool:
    """Does the last block have a forward that takes a keyword of ours?"""
    last, transformer = model.transformer.resblocks[-1], model.transformer
    return "forward" in last.__dict__ and "forward" not in transformer.__dict__


def is_right(model: Any) -> bool:
    """May patch tokens be left out of the last block at this moment? A hook in it or around it is
    there to see them all."""
    if not reads_cls_only(model) or not is_last_ours(model):
        return False
    transformer = model.transformer
    around = (transformer, transformer.resblocks, model.ln_post)
    return not any(map(is_hooked, (*around, *transformer.resblocks[-1].modules())))
