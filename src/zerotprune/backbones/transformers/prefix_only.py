"""transformers' classifiers with the last block computed for the prefix tokens alone."""

from __future__ import annotations

from typing import Any

from ..prefix_only import PrefixOnly
from .families import base_of, blocks_of, reads_of
from .forwards import is_hooked, is_last_ours, read_call


class TransformersPrefixOnly(PrefixOnly):
    def __call__(self, *args: Any, **given: Any) -> Any:
        call = read_call(self.model, args, given)
        if is_right(self.model, call):
            # Every block gets the keyword; the last one heeds it.
            call["prefix_only"] = True
        return self.whole(**call)


def is_right(model: Any, call: dict[str, Any]) -> bool:
    """May patch tokens be left out of the last block in this call? A classifier shows them only as
    hidden states; a hook in the last block, or around it, is there to see all."""
    shown = call.get("output_hidden_states", model.config.output_hidden_states)
    if shown or reads_of(model) != "prefix" or not is_last_ours(model):
        return False
    base, blocks = base_of(model), blocks_of(model)
    if "forward" in base.__dict__:
        return False
    around = [module for name, module in base.named_modules() if _holds(name, module, blocks)]
    return not any(is_hooked(module) for module in (*around, *blocks[-1].modules()))


def _holds(name: str, module: Any, blocks: Any) -> bool:
    """Is it the Transformer, on the way to the blocks, or the norm after them?"""
    return name == "layernorm" or any(each is blocks for each in module.children())
