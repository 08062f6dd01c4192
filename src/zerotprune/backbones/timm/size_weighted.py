"""timm's models with a head that pools tokens by the patches in them."""

from __future__ import annotations

from typing import Any

from timm.layers import AttentionPoolPrr
from torch import Tensor

from ...scoring.attention import Heads, output
from ...tokens import Tokens
from ..size_weighted import SizeWeighted, weighted_maximum, weighted_mean
from .block_row import WithBlocks, is_last_ours
from .heads import head_reads_prefix_only, head_weighs_sizes


class TimmSizeWeighted(SizeWeighted):
    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        if not is_last_ours(model):
            return self.whole(*args, **given)
        left: list[Tokens] = []
        seen = WithBlocks(model, model.blocks, left=left)
        return self.head(type(model).forward_features(seen, *args, **given), left)

    def head(self, features: Tensor, left: list[Tokens]) -> Any:
        """What the model's head makes of the features, which stand for the tokens left."""
        model, tokens = self.model, left[-1]
        kind = type(model)
        if head_reads_prefix_only(model):
            return kind.forward_head(model, features)
        if not head_weighs_sizes(model):
            raise ValueError(
                "the model's head was changed after pruning, and it is not known how this one "
                "pools merged tokens: use prune_ again, which says what this head can take"
            )
        if tokens.weight() is None:
            return kind.forward_head(model, features)
        return kind.forward_head(_Pooled(model), self._pool(features, tokens))

    def _pool(self, x: Tensor, tokens: Tokens) -> Tensor:
        model, weight = self.model, tokens.weight()
        attended = tokens.weight(self.proportional)
        assert weight is not None
        pool = getattr(model, "attn_pool", None)
        # EVA's attention pooling has no such option, and reads all tokens.
        if not getattr(model, "pool_include_prefix", pool is not None):
            first = model.num_prefix_tokens
            x, weight = x[:, first:], weight[:, first:]
            attended = None if attended is None else attended[:, first:]
        if pool is not None:
            if isinstance(pool, AttentionPoolPrr):
                return _refine(pool, x, weight, attended)
            bias = None if attended is None else attended.log().to(x.dtype)[:, None, None]
            return pool(x, attn_mask=bias)  # type: ignore[no-any-return]
        if model.global_pool == "max":
            return weighted_maximum(x, weight)
        mean = weighted_mean(x, weight)
        return mean if model.global_pool == "avg" else 0.5 * (weighted_maximum(x, weight) + mean)


def _refine(pool: Any, x: Tensor, weight: Tensor, attended: Tensor | None) -> Tensor:
    """timm's `AttentionPoolPrr`, which takes no mask: self-attention without projections, then the
    first token or the mean."""
    x = pool.pre_norm(x)
    split = x.unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
    heads = Heads(split, split, split, pool.scale, pool.fused_attn, 0.0, size=attended)
    x = pool.post_norm(output(heads).transpose(1, 2).flatten(2))
    return x[:, 0] if pool.pool == "token" else weighted_mean(x, weight)


class _Pooled:
    """The model as its own `forward_head` sees it: what comes is pooled already."""

    global_pool = ""  # BEiT pools by this, the others by `pool`

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def pool(self, x: Tensor) -> Tensor:
        return x
