"""LV-ViT (Jiang et al. 2021, All Tokens Matter): the model itself, which no library carries.

A ViT with a convolutional stem, residual branches divided by `skip_lam`, and a second head on the
patches: its logits are head(CLS) + ½ · the maximum of aux_head over the patches. Weights have the
names of the published checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...shapes import Float


class LVViT(nn.Module):
    """An LV-ViT with random weights.

    >>> model = LVViT(image_size=32, dim=24, depth=2, heads=2, classes=5).eval()
    >>> model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        skip_lam: float = 2.0,
        stem: int = 64,
        image_size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patch_embed = Stem(image_size, stem, dim)
        patches = (image_size // Stem.PATCH) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, skip_lam) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.aux_head = nn.Linear(dim, classes)
        for weight in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return predict(self, self.norm(x))


def predict(model: Any, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch classes"]:
    """Return the two heads' logits from normalized tokens, CLS first."""
    cls: Tensor = model.head(x[:, 0])
    patches: Tensor = model.aux_head(x[:, 1:])
    return cls + 0.5 * patches.amax(dim=1)


class Stem(nn.Module):
    """Three convolutions at half the size, and one that makes patches of 16 × 16 pixels."""

    PATCH = 16

    def __init__(self, image_size: int, width: int, dim: int) -> None:
        super().__init__()
        self.img_size = (image_size, image_size)
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.proj = nn.Conv2d(width, dim, self.PATCH // 2, stride=self.PATCH // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.relu(self.bn3(self.conv3(x)))
        patches: Tensor = self.proj(x)
        return patches


class Block(nn.Module):
    """x + attention(norm1(x)) / skip_lam, then x + mlp(norm2(x)) / skip_lam."""

    def __init__(self, dim: int, heads: int, skip_lam: float) -> None:
        super().__init__()
        self.skip_lam = skip_lam
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x)) / self.skip_lam
        fed: Tensor = x + self.mlp(self.norm2(x)) / self.skip_lam
        return fed


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = heads, (dim // heads) ** -0.5
        self.fused_attn = True  # else as in the first implementation, rounding included
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        if self.fused_attn:
            out = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            out = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        projected: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return projected


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.fc2(self.act(self.fc1(x)))
        return fed
