"""How transformers' models end, and which of their calls a pruned model refuses.

Their forwards pass keywords on to the blocks, so `prefix_only` needs no other forward. A model that
pools runs its forward with the pooler, or the Transformer in it, replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ...scoring.indexing import is_exporting
from ...tokens import Tokens
from ..contract import NO_MASK
from ..ending import Ending, Proxy, is_foreign
from .families import base_of, blocks_of, family_of, is_map, pooler_of, reads_of, refuse_old
from .geometry import prefix_of

try:
    from transformers.utils.generic import merge_with_config_defaults
    from transformers.utils.output_capturing import capture_outputs
except ImportError:
    refuse_old(transformers.__version__)
    raise

#: the library's module whose hooks record hidden states on request
RECORDING = "transformers.utils.output_capturing"


def pools(model: Any) -> bool:
    """Return whether the model pools patches anywhere."""
    return reads_of(model) in ("mean", "pooler", "pooled")


class TransformersEnding(Ending):
    recorders = (RECORDING,)

    def last_block(self) -> nn.Module:
        block: nn.Module = blocks_of(self.model)[-1]
        return block

    def around(self) -> list[nn.Module]:
        """Return the Transformer, the modules between it and the blocks, and the last norm."""
        base, path = base_of(self.model), family_of(self.model).blocks.split(".")
        modules = [base.get_submodule(".".join(path[:depth])) for depth in range(len(path))]
        norm = getattr(base, "layernorm", None)
        return modules if norm is None else [*modules, norm]

    def bypassed(self) -> list[nn.Module]:
        model, base = self.model, base_of(self.model)
        named = pooler_of(base)
        if named is None or reads_of(model) not in ("pooler", "pooled"):
            return []
        around = [] if base is model else [base]
        return [*around, named[1]] if is_map(named[1]) else around

    def reads_prefix_only(self) -> bool:
        """Return whether the classifier reads no patch tokens, and shows them only as hidden
        states."""
        return reads_of(self.model) == "prefix" and not is_foreign(base_of(self.model))

    def weighs_sizes(self) -> bool:
        return reads_of(self.model) != "grid"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = read_call(self.model, args, kwargs)
        shown = call.get("output_hidden_states", self.model.config.output_hidden_states)
        return self.run(self.last_kwargs(prefix_only=not shown), **call)

    def run(self, last: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model = self.model
        if "left" not in last or not pools(model):
            # All blocks get the keyword, and only the last one uses it.
            return self.whole(*args, **kwargs, **({} if "left" in last else last))
        base = base_of(model)
        if reads_of(model) == "mean":
            run = self.whole if base is model else base
            weighed: Any = functools.partial(_weighed, base, run)
        else:
            weighed = functools.partial(_pooled, base, proportional=self.proportional)
        if base is model:
            return weighed(*args, **kwargs)
        return type(model).forward(
            Proxy(model, **{family_of(model).base: weighed}), *args, **kwargs
        )


def _weighed(base: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the Transformer for a classifier that takes the mean over patches."""
    left: list[Tokens] = []
    out = run(*args, left=left, **kwargs)
    out.last_hidden_state = scaled_by_size(out.last_hidden_state, left[-1], prefix_of(base))
    return out


@merge_with_config_defaults  # type: ignore[untyped-decorator]
@capture_outputs(tie_last_hidden_states=False)  # type: ignore[untyped-decorator]
def _pooled(base: Any, *args: Any, proportional: float, **kwargs: Any) -> Any:
    """Run the Transformer's forward, with its decorators, and with its pooler replaced."""
    left: list[Tokens] = []
    named = pooler_of(base)
    assert named is not None
    name, pooler = named
    pool = functools.partial(_pool, pooler, left, proportional, prefix_of(base))
    forward = strip_decorators(type(base).forward)
    return forward(Proxy(base, **{name: pool}), *args, left=left, **kwargs)


def _pool(
    pooler: Any, left: list[Tokens], proportional: float, prefix: int, x: Tensor, *masks: None
) -> Any:
    """Run the pooler over the tokens that left the last block."""
    if not is_map(pooler):
        return pooler(scaled_by_size(x, left[-1], prefix))
    size = left[-1].weight(proportional)
    if size is None:
        return pooler(x)
    mask = size.log().to(x.dtype).repeat_interleave(pooler.attention.num_heads, dim=0)
    attention = functools.partial(_attend, pooler.attention, mask.unsqueeze(1))
    return type(pooler).forward(Proxy(pooler, attention=attention), x)


def _attend(
    attention: Any, mask: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: None = None
) -> Any:
    return attention(q, k, v, attn_mask=mask)


def scaled_by_size(x: Tensor, tokens: Tokens, prefix: int) -> Tensor:
    """Scale patch tokens so that their plain mean is the mean over patches."""
    weight = tokens.weight()
    if weight is None:
        return x
    weight = weight[:, prefix:]
    share = (weight / weight.mean(dim=1, keepdim=True)).unsqueeze(-1)
    return torch.cat((x[:, :prefix], (x[:, prefix:] * share).to(x.dtype)), dim=1)


def strip_decorators(forward: Any) -> Any:
    """Return a forward without the library's decorators."""
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward


def read_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; refuse those that would give wrong results."""
    names = strip_decorators(type(model).forward).__code__.co_varnames[1 : 1 + len(args)]
    call = dict(zip(names, args, strict=True)) | kwargs
    if call.get("bool_masked_pos") is not None:
        raise ValueError(
            "bool_masked_pos needs every patch, and a pruned model has fewer: call "
            "restore_(model) first"
        )
    if call.get("attention_mask") is not None:
        raise ValueError(NO_MASK)
    if call.get("output_attentions", model.config.output_attentions):
        raise ValueError(
            "a pruned model cannot return attentions, as its blocks have different tokens: use "
            "trace(model, images) to see what happened to every patch"
        )
    for name in ("pixel_attention_mask", "patch_attention_mask"):
        if call.get(name) is not None:
            _refuse_padding(name, call[name])
            call[name] = None
    if is_exporting():
        # The library then makes a mask that masks nothing: tell its blocks so.
        call["unmasked"] = True
    return call


def _refuse_padding(name: str, mask: Tensor) -> None:
    """Refuse a mask of SigLIP 2 or Idefics 3 that masks something."""
    if torch.compiler.is_compiling():
        raise ValueError(
            "a compiler cannot see whether a mask masks anything: pass "
            f"{name}=None, and images without padding"
        )
    if not bool(mask.all()):
        raise ValueError(
            "a pruned model takes no padded images: pass images of one size that fill all patches"
        )
