"""The patch embedding of a pruned model as a matrix product, where a convolution is slow.

Patches do not overlap, so that their embedding is one matrix product. For three channels in half
precision cuDNN has no kernel that uses tensor cores, and its convolution takes up to a quarter of a
pruned model's time. Pruning cannot make that smaller; the product can.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..block import refuse_old_compiler
from ..scoring.graph import is_autocast
from ..shapes import Float

#: where the product is faster: cuDNN's tensor cores need channels in multiples of 8
_DEVICES = ("cuda",)
_PRECISIONS = (torch.float16, torch.bfloat16)
_ALIGNED = 8


def attach_products(model: nn.Module) -> None:
    """Let the model's patch embeddings multiply matrices, wherever that is faster."""
    for conv in model.modules():
        if type(conv) is nn.Conv2d and _cuts_patches(conv) and "forward" not in conv.__dict__:
            cast(Any, conv).forward = PatchProduct(conv).forward


def detach_products(model: nn.Module) -> None:
    """Give the patch embeddings their own forward again."""
    for conv in model.modules():
        if isinstance(getattr(conv.__dict__.get("forward"), "__self__", None), PatchProduct):
            del conv.forward


class PatchProduct:
    """Replace the forward of a convolution that cuts an image into patches."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self.conv = conv

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch embed_dim rows columns"]:
        refuse_old_compiler()
        if _is_faster(self.conv, images):
            return multiply_patches(images, self.conv.weight, self.conv.bias)
        return nn.Conv2d.forward(self.conv, images)


def multiply_patches(
    images: Float[Tensor, "batch channels height width"],
    weight: Float[Tensor, "embed_dim channels patch_height patch_width"],
    bias: Float[Tensor, " embed_dim"] | None,
) -> Float[Tensor, "batch embed_dim rows columns"]:
    """Embed all patches by one matrix product.

    The result has its channels last in memory, the order that a Transformer wants its tokens in.
    """
    batch, channels, height, width = images.shape
    patch_height, patch_width = weight.shape[2:]
    rows, columns = height // patch_height, width // patch_width
    cut = images.reshape(batch, channels, rows, patch_height, columns, patch_width)
    patches = cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1)
    tokens = F.linear(patches, weight.flatten(1), bias)
    return tokens.transpose(1, 2).reshape(batch, -1, rows, columns)


def _cuts_patches(conv: nn.Conv2d) -> bool:
    return (
        conv.stride == conv.kernel_size != (1, 1)
        and conv.padding == (0, 0)
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.in_channels % _ALIGNED != 0
    )


def _is_faster(conv: nn.Conv2d, images: Tensor) -> bool:
    device = images.device.type
    precision = torch.get_autocast_dtype(device) if is_autocast(images) else images.dtype
    return (
        device in _DEVICES
        and precision in _PRECISIONS
        and images.dim() == 4
        and images.shape[2] % conv.kernel_size[0] == 0
        and images.shape[3] % conv.kernel_size[1] == 0
    )
