"""How open_clip's towers end: what their heads read, and how they pool tokens by size."""

from __future__ import annotations

import functools
from typing import Any

import open_clip.transformer as clip
from torch import Tensor, nn

from ...shapes import Float
from ...tokens import Tokens
from ..ending import BlockRow, Ending, Proxy, identity, is_refusal, weighted_mean

_POOLS = ("_pool", "_global_pool")


def is_cascade(model: Any) -> bool:
    """Return whether the second attention pooling reads the output of the first, not tokens."""
    return bool(getattr(model, "attn_pool_type", "") == "cascade")


class ClipEnding(Ending):
    def last_block(self) -> nn.Module:
        block: nn.Module = self.model.transformer.resblocks[-1]
        return block

    def around(self) -> tuple[nn.Module, ...]:
        transformer = self.model.transformer
        return transformer, transformer.resblocks, self.model.ln_post

    def bypassed(self) -> list[nn.Module]:
        model = self.model
        if model.attn_pool is None:
            return [model.transformer]
        second = None if is_cascade(model) else model.attn_pool_contrastive
        return [model.transformer, model.attn_pool, *([] if second is None else [second])]

    def reads_prefix_only(self) -> bool:
        """Return whether it reads the prefix tokens alone. A tower may also return patch tokens."""
        model = self.model
        plain = model.attn_pool is None and model.pool_type == "tok"
        return self._is_known() and plain and not model.output_tokens

    def weighs_sizes(self) -> bool:
        model = self.model
        if not self._is_known():
            return False
        if model.attn_pool is None:
            return model.pool_type in ("tok", "avg")
        poolers = (model.attn_pool, model.attn_pool_contrastive)
        return all(type(pool) is clip.AttentionalPooler for pool in poolers if pool is not None)

    def _is_known(self) -> bool:
        """Return whether the pooling and the forward of the Transformer are open_clip's own."""
        kind, attributes = type(self.model), self.model.__dict__
        plain = all(getattr(kind, name) is getattr(clip.VisionTransformer, name) for name in _POOLS)
        replaced = any(name in attributes and not is_refusal(attributes[name]) for name in _POOLS)
        return plain and not replaced and "forward" not in self.model.transformer.__dict__

    def run(self, last: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model = self.model
        return type(model).forward(self._seen(model.transformer.resblocks, last), *args, **kwargs)

    def enter(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        model, last = self.model, self.last_kwargs()
        blocks = list(model.transformer.resblocks)[block - 1 :]
        outputs: Tensor = type(model).forward(self._seen(blocks, last, _embeds=identity), x)
        return outputs

    def _seen(self, blocks: Any, last: dict[str, Any], **attributes: Any) -> Proxy:
        transformer = Proxy(self.model.transformer, resblocks=BlockRow(blocks, last))
        if "left" in last:
            attributes |= self._pooling(last["left"])
        return Proxy(self.model, transformer=transformer, **attributes)

    def _pooling(self, left: list[Tokens]) -> dict[str, Any]:
        """Return replacements, by name, for the parts of the head that pool; the last block fills
        `left` before they run."""
        assert self.proportional is not None
        model = self.model
        if model.attn_pool is None:
            return (
                {"_global_pool": functools.partial(_mean, left)} if model.pool_type == "avg" else {}
            )
        attend = functools.partial(_attend, left, self.proportional)
        pooling: dict[str, Any] = {"attn_pool": functools.partial(attend, model.attn_pool)}
        second = model.attn_pool_contrastive
        if second is not None and not is_cascade(model):
            pooling["attn_pool_contrastive"] = functools.partial(attend, second)
        return pooling


def _mean(left: list[Tokens], x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the tower's mean over patches, weighted by size."""
    weight, patches = left[-1].weight(), x[:, 1:]
    if weight is None:
        return patches.mean(dim=1), patches
    return weighted_mean(patches, weight[:, 1:]), patches


def _attend(left: list[Tokens], proportional: float, pool: Any, x: Tensor) -> Tensor:
    """Compute the tower's attention pooling with the log of the sizes added to its logits."""
    size = left[-1].weight(proportional)
    if size is None:
        plain: Tensor = pool(x)
        return plain
    x, query = pool.ln_k(x), pool.ln_q(pool.query)
    mask = size.log().to(x.dtype)[:, None, None]
    mask = mask.expand(-1, pool.attn.num_heads, len(pool.query), -1).flatten(0, 1)
    query = query.unsqueeze(0).expand(x.shape[0], -1, -1)
    pooled: Tensor = pool.attn(query, x, x, need_weights=False, attn_mask=mask)[0]
    return pooled
