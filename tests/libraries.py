"""Tiny models of the libraries beside timm, with random weights that matter; 6 × 6 patches each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from open_clip.transformer import QuickGELU
from open_clip.transformer import VisionTransformer as Tower
from torch import Tensor, nn
from torchvision.models.vision_transformer import ConvStemConfig
from torchvision.models.vision_transformer import VisionTransformer as Vit

from zerotprune.backbones import backbone
from zerotprune.backbones.lvvit import LVViT

DEPTH, WIDTH, PATCHES = 5, 48, 36


def _torchvision(**kwargs: Any) -> nn.Module:
    shape: dict[str, Any] = {"image_size": 96, "patch_size": 16, "num_layers": DEPTH}
    shape |= {"num_heads": 3, "hidden_dim": WIDTH, "mlp_dim": 96, "num_classes": 7}
    made: nn.Module = Vit(**(shape | kwargs))
    return made


def _tower(**kwargs: Any) -> nn.Module:
    shape: dict[str, Any] = {"image_size": 96, "patch_size": 16, "layers": DEPTH, "heads": 3}
    shape |= {"width": WIDTH, "mlp_ratio": 2.0, "output_dim": 24}
    shape |= {"attn_pooler_heads": 4, "attn_pooler_queries": 5}
    made: nn.Module = Tower(**(shape | kwargs))
    return made


def _lvvit() -> nn.Module:
    return LVViT(image_size=96, dim=WIDTH, depth=DEPTH, heads=3, classes=7, stem=16)


def tlt() -> Any:
    """Import LV-ViT's first implementation, which runs on today's timm with warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tlt.models  # noqa: F401
    return sys.modules["tlt.models.lvvit"]  # the package has a function of the same name


def _tlt() -> nn.Module:
    made: nn.Module = tlt().LV_ViT(
        img_size=96, embed_dim=WIDTH, depth=DEPTH, num_heads=3, mlp_ratio=3.0, skip_lam=2.0,
        num_classes=7, return_dense=True, mix_token=True,
    )  # fmt: skip
    return made


SCALES = ("qk_norm", "scale_heads", "scale_attn", "scale_attn_inner", "scale_fc")
_STEM = [ConvStemConfig(8, 3, 4), ConvStemConfig(16, 3, 4)]
MODELS: dict[str, Callable[[], nn.Module]] = {
    "torchvision": _torchvision,
    "torchvision, stem and pre-logits": lambda: _torchvision(
        conv_stem_configs=_STEM, representation_size=12
    ),
    "open_clip": _tower,
    "open_clip, layer scale, quick gelu": lambda: _tower(ls_init_value=0.5, act_layer=QuickGELU),
    "open_clip, own attention": lambda: _tower(block_type="custom"),
    "open_clip, own attention, scales": lambda: _tower(**dict.fromkeys(SCALES, True)),
    "open_clip, mean": lambda: _tower(pool_type="avg", no_ln_pre=True),
    "open_clip, mean, then norm": lambda: _tower(pool_type="avg", final_ln_after_pool=True),
    "open_clip, attention pool": lambda: _tower(attentional_pool=True),
    "open_clip, attention pool, mean": lambda: _tower(attentional_pool=True, pool_type="avg"),
    "open_clip, two attention pools": lambda: _tower(attentional_pool="parallel", output_dim=WIDTH),
    "open_clip, pool after pool": lambda: _tower(attentional_pool="cascade", output_dim=WIDTH),
    "lvvit": _lvvit,
    "tlt": _tlt,
}
with_tlt = pytest.mark.skipif(
    find_spec("tlt") is None, reason="tlt is not here: pip install --no-deps tlt"
)
NAMES = [pytest.param(name, marks=with_tlt if name == "tlt" else ()) for name in MODELS]
#: those whose head reads CLS alone, and those whose head pools
CLS = [name for name in MODELS if name.startswith("torchvision") or name in list(MODELS)[2:6]]
POOLING = [param for param in NAMES if param.values[0] not in CLS]


def build(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return stir(MODELS[name]()).eval()


def stir(model: nn.Module) -> nn.Module:
    """Randomize a fresh model: zero biases, heads of zeros and uniform attention test little."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.12 * torch.randn_like(weight))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model


def images_for(model: nn.Module, count: int = 2) -> Tensor:
    shape = backbone(model).input_shape
    return torch.randn(count, *shape, dtype=next(model.parameters()).dtype)
