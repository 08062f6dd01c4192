"""Every family of transformers' Vision Transformers, tiny and with random weights that matter."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.families import stirred

#: 6 × 6 patches, as in the families of timm
SMALL = {
    "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 96,
    "image_size": 96, "patch_size": 16, "num_labels": 7,
}  # fmt: skip
_DINO = {"mlp_ratio": 2, "layerscale_value": 0.8}
_SWIGLU = _DINO | {"use_swiglu_ffn": True}
_TEXT = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 1}

#: name in the test's report → class, config's class, and options of the config
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("ViTForImageClassification", "ViTConfig", {}),
    "vit, base": ("ViTModel", "ViTConfig", {}),
    "deit": ("DeiTForImageClassification", "DeiTConfig", {}),
    "deit, teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {}),
    "deit, base": ("DeiTModel", "DeiTConfig", {}),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", _DINO),
    "dinov2, base": ("Dinov2Model", "Dinov2Config", _DINO),
    "dinov2, swiglu": ("Dinov2ForImageClassification", "Dinov2Config", _SWIGLU),
    "registers": ("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", _DINO),
    "registers, base": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _DINO),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", {"num_register_tokens": 2}),
    "dinov3, gated": ("DINOv3ViTModel", "DINOv3ViTConfig", {"use_gated_mlp": True}),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", {}),
    "clip, projection": (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {"projection_dim": 9},
    ),
    "clip, classifier": ("CLIPForImageClassification", "CLIPConfig", {}),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", {}),
    "siglip, no head": ("SiglipVisionModel", "SiglipVisionConfig", {"vision_use_head": False}),
    "siglip, classifier": ("SiglipForImageClassification", "SiglipConfig", {}),
    "siglip2": ("Siglip2VisionModel", "Siglip2VisionConfig", {"num_patches": 36}),
    "siglip2, classifier": ("Siglip2ForImageClassification", "Siglip2Config", {"num_patches": 36}),
    "beit": ("BeitForImageClassification", "BeitConfig", {"use_relative_position_bias": True}),
    "beit, base": ("BeitModel", "BeitConfig", {"use_shared_relative_position_bias": True}),
    "beit, cls": (
        "BeitForImageClassification",
        "BeitConfig",
        {"use_mean_pooling": False, "use_absolute_position_embeddings": True},
    ),
    "idefics3": ("Idefics3VisionTransformer", "Idefics3VisionConfig", {}),
    "smolvlm": ("SmolVLMVisionTransformer", "SmolVLMVisionConfig", {}),
}
TOWERS = ["idefics3", "smolvlm"]
#: of `AutoBackbone`: feature maps of four of their stages
_MAPS = {"out_features": ["stage1", "stage2", "stage4", "stage5"]}
BACKBONES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dinov2, maps": ("Dinov2Backbone", "Dinov2Config", _DINO | _MAPS),
    "registers, maps": (
        "Dinov2WithRegistersBackbone",
        "Dinov2WithRegistersConfig",
        _DINO | _MAPS,
    ),
    "dinov3, maps": (
        "DINOv3ViTBackbone",
        "DINOv3ViTConfig",
        {"num_register_tokens": 2, "return_class_token": True} | _MAPS,
    ),
    "beit, maps": ("BeitBackbone", "BeitConfig", {"use_relative_position_bias": True} | _MAPS),
    "beit, pyramid": ("BeitBackbone", "BeitConfig", {"add_fpn": True} | _MAPS),
}
CLASSIFIERS = [name for name, (kind, *_) in FAMILIES.items() if "Classification" in kind]


def build(family: str, seed: int = 0, attention: str = "sdpa", depth: int = 5) -> Any:
    kind, config_kind, options = (FAMILIES | BACKBONES)[family]
    options = options | {"num_hidden_layers": depth}
    torch.manual_seed(seed)
    made = getattr(transformers, config_kind)
    if config_kind in ("CLIPConfig", "SiglipConfig", "Siglip2Config"):
        config = made(text_config=_TEXT, vision_config=SMALL | options, num_labels=7)
    else:
        config = made(**SMALL | options)
    model: nn.Module = getattr(transformers, kind)._from_config(
        config, attn_implementation=attention
    )
    return stirred(model).eval()


#: one of each family, for what takes long
FEW = ["vit", "deit, teacher", "dinov2", "registers", "dinov3", "clip", "siglip", "beit"]


def images_for(family: str, count: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return the inputs of a call."""
    images = torch.randn(count, 3, 96, 96, dtype=dtype)
    if not family.startswith("siglip2"):
        return {"pixel_values": images}
    patches = images.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1)
    return {
        "pixel_values": patches.reshape(count, 36, -1),
        "pixel_attention_mask": torch.ones(count, 36, dtype=torch.long),
        "spatial_shapes": torch.tensor([[6, 6]] * count),
    }


def answers(out: Any) -> list[Tensor]:
    """Return all tensors in a model's output."""
    return [value for value in out.values() if isinstance(value, Tensor)]


def enable_checkpointing(model: Any, **kwargs: Any) -> None:
    """Recompute activations in the backward pass, by the name that this transformers has for it."""
    current = getattr(model, "activation_checkpointing_enable", None)
    (current or model.gradient_checkpointing_enable)(kwargs or None)
