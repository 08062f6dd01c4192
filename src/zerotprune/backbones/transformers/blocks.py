"""transformers' blocks, taken apart by role: all are x + attention(norm(x)), x + mlp(norm(x))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...scoring.attention import Heads
from ...tokens import Tokens
from ..contract import BlockCall
from ..positions import bias_among
from .attention import attention_of, project, role, split


class TransformersCall(BlockCall):
    """x, a mask by position or by name, and keywords; a tensor comes back."""

    def read(
        self, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        x, *masks = args
        if type(x) is tuple:
            raise ValueError(
                "reentrant gradient checkpointing loses what travels with the tokens of a pruned "
                'model: use gradient_checkpointing_enable({"use_reentrant": False})'
            )
        others = dict(given)
        if masks:
            others["attention_mask"] = masks[0]
        return x, others


@dataclass(frozen=True, eq=False)
class PreNorm:
    """Dropout, layer scale and drop path of a branch come in this order, where a block has them."""

    block: Any
    tokens: int  # that enter the model's first block
    image: tuple[int, int]  # height and width, for which these are
    tower: bool = False  # does it get a mask of patches, all of which are there?

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        self._refuse_other_size(tokens)
        block = self.block
        x = role(block, "layernorm_before", "norm1", "layer_norm1")(tokens.x)
        rotary, bias = given.get("position_embeddings"), self._bias(tokens, given, queries)
        return [split(attention_of(block), x, tokens, queries, rotary, bias)]

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        branch = project(attention_of(self.block), outputs[0])
        return self._ended(branch, "layer_scale1", "lambda_1") + x

    def feed(self, x: Tensor) -> Tensor:
        block = self.block
        branch = block.mlp(role(block, "layernorm_after", "norm2", "layer_norm2")(x))
        return self._ended(branch, "layer_scale2", "lambda_2") + x

    def _ended(self, branch: Tensor, module: str, parameter: str) -> Tensor:
        block = self.block
        if hasattr(block, "dropout"):
            branch = block.dropout(branch)
        if hasattr(block, module):
            branch = getattr(block, module)(branch)
        elif hasattr(block, parameter):
            branch = getattr(block, parameter) * branch
        return block.drop_path(branch) if hasattr(block, "drop_path") else branch

    def _bias(self, tokens: Tokens, given: dict[str, Any], queries: int | None) -> Tensor | None:
        """BEiT's relative positions: its own, and those that all blocks share, as a mask."""
        block, bias = self.block, given.get("attention_mask")
        relative = hasattr(block, "relative_position_bias")
        if bias is not None and (given.get("unmasked") or self._masks_nothing(bias)):
            bias = bias[:1] if relative else None
        if bias is not None and (not relative or len(bias) > 1):
            raise ValueError(
                "a pruned model takes no attention mask: it would not fit what is left"
            )
        if relative and block.relative_position_bias is not None:
            height, width = (side // block.patch_size for side in given["resolution"])
            resampled = given.get("interpolate_pos_encoding", False)
            own = block.relative_position_bias((height, width), resampled, dim_size=self.tokens)
            bias = own if bias is None else own + bias
        if bias is None:
            return None
        return bias_among(bias, tokens, queries) if tokens.moved else bias[..., :queries, :]

    def _masks_nothing(self, mask: Tensor) -> bool:
        """A compiler cannot look into a mask; `forwards` has refused what would mask something."""
        if not self.tower or torch.compiler.is_compiling():
            return self.tower
        return bool((mask if mask.dtype == torch.bool else mask == 0).all())

    def _refuse_other_size(self, tokens: Tokens) -> None:
        came = tokens.x.shape[1]
        if not tokens.moved and came != self.tokens:
            height, width = self.image
            raise ValueError(
                f"the model was pruned for images of {height} × {width} pixels, {self.tokens} "
                f"tokens, and got {came}: set it to the size of the images before it is pruned, "
                "with zerotprune.backbones.backbone(model).resize_(size)"
            )
