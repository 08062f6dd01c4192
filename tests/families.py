"""Every family of timm's Vision Transformers, tiny and with random weights that matter."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from zerotprune.cost import BlockShape, Geometry

#: name in the test's report → timm's name and what makes it small (6 × 6 patches)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("deit_tiny_patch16_224", {}),
    "deit distilled": ("deit_tiny_distilled_patch16_224", {}),
    "augreg": ("vit_tiny_patch16_224", {}),
    "mae, average pooling": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "deit-3, layer scale": ("deit3_small_patch16_224", {}),
    "dinov2, layer scale": ("vit_small_patch14_dinov2", {"img_size": 84}),
    "dinov2, registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 84}),
    "dinov2, swiglu": ("vit_giant_patch14_reg4_dinov2", {"img_size": 84}),
    "clip, pre-norm": ("vit_base_patch32_clip_224", {"img_size": 192}),
    "siglip, no cls": ("vit_base_patch16_siglip_224", {}),
    "aimv2, rms norm": ("aimv2_large_patch14_224", {"img_size": 84}),
    "qk norm": ("vit_base_patch16_224", {"qk_norm": True}),
    "scale norms": ("vit_base_patch16_224", {"scale_attn_norm": True, "scale_mlp_norm": True}),
    "registers, map": ("vit_so150m_patch16_reg4_map_256", {}),
    "registers, gap": ("vit_little_patch16_reg4_gap_256", {}),
    "residual post-norm": ("vit_base_patch16_rpn_224", {}),
    "residual post-norm, cls": (
        "vit_base_patch16_rpn_224",
        {"class_token": True, "global_pool": "token"},
    ),
    "parallel things": ("vit_small_patch16_18x2_224", {}),
    "parallel scaling": ("vit_base_patch16_xp_224", {}),
    "parallel scaling, qk norm": ("vit_base_patch16_xp_224", {"qk_norm": True}),
    "hybrid stem": ("vit_tiny_r_s16_p8_224", {"img_size": 192}),
    "eva": ("eva_giant_patch14_224", {"img_size": 84}),
    "eva-02, rotary": ("eva02_tiny_patch14_224", {"img_size": 84}),
    "eva-02, post-norm": ("eva02_enormous_patch14_clip_224", {"img_size": 84}),
    "dinov3, rotary": ("vit_small_patch16_dinov3", {}),
    "dinov3, qkv bias": ("vit_small_patch16_dinov3_qkvb", {}),
    "rotary, mixed by depth": ("vit_base_patch16_rope_mixed_224", {}),
    "perception encoder": ("vit_pe_core_tiny_patch16_384", {}),
    "sapiens2, grouped queries": (
        "vit_base_patch16_sapiens2",
        {"num_kv_heads": 1, "img_size": 96},
    ),
    "beit, relative bias": ("beit_base_patch16_224", {}),
    "beit, shared bias": (
        "beit_base_patch16_224",
        {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
    ),
    "test_vit": ("test_vit", {}),
    "test_vit2": ("test_vit2", {}),
    "test_vit3": ("test_vit3", {}),
    "test_vit4": ("test_vit4", {}),
}

#: this version of timm and newer ones have all of them
NEWEST = (1, 0, 30)
SMALL = {"embed_dim": 48, "num_heads": 3, "depth": 5, "num_classes": 7, "img_size": 96}


def build(family: str, seed: int = 0) -> nn.Module:
    name, options = FAMILIES[family]
    newest = tuple(map(int, timm.__version__.split(".")[:3])) >= NEWEST
    if not newest and family.startswith("parallel scaling"):
        pytest.skip(f"timm {timm.__version__} adds a bias in another place, and is refused")
    torch.manual_seed(seed)
    if not name.startswith("test_"):
        options = SMALL | options
    try:
        model: nn.Module = timm.create_model(name, **options)
    except (RuntimeError, TypeError):  # no such model, or no such option
        if newest:
            raise
        pytest.skip(f"timm {timm.__version__} has no {family}")
    return stirred(model).eval()


def stirred(model: nn.Module) -> nn.Module:
    """Randomize a fresh model: zero biases, layer scales near 0 and uniform attention test
    little."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("gamma", "ls1", "ls2", "norm")):
                parameter.add_(0.3 * torch.randn_like(parameter) + 0.5)
            else:
                parameter.add_(0.12 * torch.randn_like(parameter))
    return model


def plain_geometry(depth: int, side: int, prefix: int, dim: int) -> Geometry:
    """Return the geometry of a plain ViT with CLS pooling, patch 16 and 10 classes."""
    block = BlockShape(4 * dim * dim, 2 * dim * dim, 8 * dim * dim, dim, 4, dim, 0, dim)
    return Geometry(
        blocks=(block,) * depth,
        grid=(side, side),
        prefix=prefix,
        cls=prefix > 0,
        pools_patches=False,
        dim=dim,
        stem=side * side * 768 * dim,
        stem_norms=0,
        head=10 * dim,
        head_token=0,
        head_pair=0,
        head_norms=dim,
        head_norms_once=0,
    )


def precise(model: nn.Module) -> nn.Module:
    """Convert to float64, if timm can run the model in it."""
    stem, rope = getattr(model.patch_embed, "backbone", None), getattr(model, "rope_mixed", False)
    return model if stem is not None or rope else model.double()


def images_for(model: Any, count: int = 2) -> Tensor:
    height, width = model.patch_embed.img_size
    return torch.randn(count, 3, height, width, dtype=next(model.parameters()).dtype)


def same(one: Tensor, other: Tensor) -> bool:
    """Are two copies' outputs equal to the last bit? Before torch 2.15 a CPU's matrix product was
    rounded by where its memory begins, and copies agree to rounding."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5)
