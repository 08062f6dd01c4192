"""open_clip's towers with a head that pools tokens by the patches in them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...tokens import Tokens
from ..size_weighted import SizeWeighted, weighted_mean
from .heads import is_cascade, reads_cls_only, weighs_sizes
from .prefix_only import is_last_ours, with_row


class ClipSizeWeighted(SizeWeighted):
    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self.model
        if not is_last_ours(model) or reads_cls_only(model):
            return self.whole(*args, **given)
        left: list[Tokens] = []
        return type(model).forward(with_row(model, self.exchanged(left), left=left), *args, **given)

    def exchanged(self, left: list[Tokens]) -> dict[str, Any]:
        """The parts of the head that pool, by the tokens that will have left the last block."""
        model = self.model
        if not weighs_sizes(model):
            raise ValueError(
                "the tower's head was changed after pruning, and it is not known how this one "
                "pools merged tokens: use prune_ again, which says what this head can take"
            )
        if model.attn_pool is None:
            return {"_global_pool": _Mean(left)} if model.pool_type == "avg" else {}
        exchanged = {"attn_pool": _Attention(model.attn_pool, left, self.proportional)}
        second = model.attn_pool_contrastive
        if second is not None and not is_cascade(model):
            exchanged["attn_pool_contrastive"] = _Attention(second, left, self.proportional)
        return exchanged


class _Mean:
    """The tower's mean over patches."""

    def __init__(self, left: list[Tokens]) -> None:
        self.left = left

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, patches = self.left[-1].weight(), x[:, 1:]
        if weight is None:
            return patches.mean(dim=1), patches
        return weighted_mean(patches, weight[:, 1:]), patches


class _Attention:
    """The tower's attention pooling, which adds the logarithm of the sizes to its logits."""

    def __init__(self, pool: Any, left: list[Tokens], proportional: float) -> None:
        self.pool, self.left, self.proportional = pool, left, proportional

    def __call__(self, x: Tensor) -> Tensor:
        pool, size = self.pool, self.left[-1].weight(self.proportional)
        if size is None:
            plain: Tensor = pool(x)
            return plain
        x, queries = pool.ln_k(x), pool.ln_q(pool.query)
        bias = size.log().to(x.dtype)[:, None, None]
        bias = bias.expand(-1, pool.attn.num_heads, len(pool.query), -1).flatten(0, 1)
        asked = queries.unsqueeze(0).expand(x.shape[0], -1, -1)
        pooled: Tensor = pool.attn(asked, x, x, need_weights=False, attn_mask=bias)[0]
        return pooled
