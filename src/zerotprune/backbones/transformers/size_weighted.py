"""transformers' models with a head that pools tokens by the patches in them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ...tokens import Tokens
from ..block_row import Through
from ..size_weighted import SizeWeighted
from .families import base_of, family_of, is_map, pooler_of, reads_of
from .forwards import is_last_ours, read_call, undecorated
from .geometry import prefix_of


class TransformersSizeWeighted(SizeWeighted):
    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        call = read_call(model, args, given)
        if not is_last_ours(model):
            return self.whole(**call)
        reads, name = reads_of(model), family_of(model).base
        if reads == "pooler":
            return _pooled(model, proportional=self.proportional, **call)
        if reads == "pooled":
            base = functools.partial(_pooled, base_of(model), proportional=self.proportional)
        else:
            base = functools.partial(_scaled, base_of(model))
        return type(model).forward(Through(model, **{name: base}), **call)


def _scaled(base: Any, *args: Any, **given: Any) -> Any:
    """What the Transformer gives, for a classifier that takes the mean over the patches: each is
    scaled by the patches in it, so that the mean is theirs."""
    left: list[Tokens] = []
    out = base(*args, left=left, **given)
    out.last_hidden_state = weighed(out.last_hidden_state, left[-1], prefix_of(base))
    return out


@merge_with_config_defaults  # type: ignore[untyped-decorator]
@capture_outputs(tie_last_hidden_states=False)  # type: ignore[untyped-decorator]
def _pooled(base: Any, *args: Any, proportional: float, **given: Any) -> Any:
    """The Transformer's own forward, as it is written and decorated, with another pooler in it."""
    left: list[Tokens] = []
    held = pooler_of(base)
    assert held is not None
    name, pooler = held
    pool = functools.partial(_pool, pooler, left, proportional, prefix_of(base))
    return undecorated(type(base).forward)(Through(base, **{name: pool}), *args, left=left, **given)


def _pool(
    pooler: Any, left: list[Tokens], proportional: float, prefix: int, x: Tensor, *masks: None
) -> Any:
    """What the pooler makes of the tokens that have left the last block."""
    if not is_map(pooler):
        return pooler(weighed(x, left[-1], prefix))
    attended = left[-1].weight(proportional)
    if attended is None:
        return pooler(x)
    bias = attended.log().to(x.dtype).repeat_interleave(pooler.attention.num_heads, dim=0)
    attention = functools.partial(_attend, pooler.attention, bias.unsqueeze(1))
    return type(pooler).forward(Through(pooler, attention=attention), x)


def _attend(
    attention: Any, bias: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_mask: None = None
) -> Any:
    return attention(q, k, v, attn_mask=bias)


def weighed(x: Tensor, tokens: Tokens, prefix: int) -> Tensor:
    """Tokens whose plain mean over the patches is that over all the patches in them."""
    weight = tokens.weight()
    if weight is None:
        return x
    weight = weight[:, prefix:]
    share = (weight / weight.mean(dim=1, keepdim=True)).unsqueeze(-1)
    return torch.cat((x[:, :prefix], (x[:, prefix:] * share).to(x.dtype)), dim=1)
