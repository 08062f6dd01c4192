"""transformers' forwards while a model is pruned: what is refused, and how they are told more."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..stand_in import StandIn
from .families import blocks_of


class Checked(StandIn):
    """The model's own forward, of a call that a pruned model can serve."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        return self.whole(**read_call(self.model, args, given))


def undecorated(forward: Any) -> Any:
    """A forward as it is written, without the library's decorators."""
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward


def is_last_ours(model: Any) -> bool:
    """Does the last block have a forward that takes a keyword of ours?"""
    return "forward" in blocks_of(model)[-1].__dict__


def read_call(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name; refused is what would be silently wrong."""
    names = undecorated(type(model).forward).__code__.co_varnames[1 : 1 + len(args)]
    call = dict(zip(names, args, strict=True)) | given
    if call.get("bool_masked_pos") is not None:
        raise ValueError(
            "bool_masked_pos wants every patch in its place, and a pruned model has fewer: use "
            "restore_(model) first"
        )
    if call.get("attention_mask") is not None:
        raise ValueError("a pruned model takes no attention mask: it would not fit what is left")
    if call.get("output_attentions", model.config.output_attentions):
        raise ValueError(
            "a pruned model gives back no attentions: those of its blocks are of different tokens; "
            "use trace(model, images) to see what became of every patch"
        )
    for name in ("pixel_attention_mask", "patch_attention_mask"):
        if call.get(name) is not None:
            _refuse_padding(name, call[name])
            call[name] = None
    if torch.compiler.is_exporting():
        # Then the library makes a mask that masks nothing: its blocks are told that it is this one.
        call["unmasked"] = True
    return call


def _refuse_padding(name: str, mask: torch.Tensor) -> None:
    """SigLIP 2's mask, or Idefics 3's, may mask nothing: then none is needed."""
    if torch.compiler.is_compiling():
        raise ValueError(
            "whether a mask masks anything is not known while compiling: give the pruned model "
            f"{name}=None and images without padding"
        )
    if not bool(mask.all()):
        raise ValueError(
            "a pruned model takes no padded images: give it images that fill all of their patches, "
            "and all of one batch alike"
        )


def is_hooked(module: nn.Module) -> bool:
    """Is there a hook on the module itself? The library's own, which record hidden states where a
    call asks for them, are not counted."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    hooks += [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]
    return any(getattr(hook, "__module__", "") != RECORDING for hook in hooks)


RECORDING = "transformers.utils.output_capturing"
