"""transformers' models by the names of their classes: where their blocks lie, what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

#: What is read of the tokens that leave the last block:
#: "prefix"  prefix tokens alone, by a classifier that shows no others
#: "tokens"  all, as they are: they are the output, whatever else is pooled from the prefix tokens
#: "mean"    the mean over the patches, by a classifier
#: "pooler"  all, as they are, and by a pooler that reads patches
#: "pooled"  what such a pooler gives, by a classifier
#: "grid"    every patch in its place
Reads = Literal["prefix", "tokens", "mean", "pooler", "pooled", "grid"]


@dataclass(frozen=True)
class Family:
    """Where a class of models has what."""

    base: str  # the Transformer itself in the model; "" where it is the model
    blocks: str  # the row of blocks in that
    reads: Reads
    tower: bool = False  # only ever a part of other models, which hand it a mask of patches


_DINO2, _CLIP = "encoder.layer", "encoder.layers"
FAMILIES: dict[str, Family] = {
    "ViTModel": Family("", "layers", "tokens"),
    "ViTForImageClassification": Family("vit", "layers", "prefix"),
    "DeiTModel": Family("", "layers", "tokens"),
    "DeiTForImageClassification": Family("deit", "layers", "prefix"),
    "DeiTForImageClassificationWithTeacher": Family("deit", "layers", "prefix"),
    "Dinov2Model": Family("", _DINO2, "tokens"),
    "Dinov2ForImageClassification": Family("dinov2", _DINO2, "mean"),
    "Dinov2Backbone": Family("", _DINO2, "grid"),
    "Dinov2WithRegistersModel": Family("", _DINO2, "tokens"),
    "Dinov2WithRegistersForImageClassification": Family("dinov2_with_registers", _DINO2, "mean"),
    "Dinov2WithRegistersBackbone": Family("", _DINO2, "grid"),
    "DINOv3ViTModel": Family("", "model.layer", "tokens"),
    "DINOv3ViTBackbone": Family("", "model.layer", "grid"),
    "CLIPVisionModel": Family("", _CLIP, "tokens"),
    "CLIPVisionModelWithProjection": Family("vision_model", _CLIP, "tokens"),
    "CLIPForImageClassification": Family("vision_model", _CLIP, "mean"),
    "SiglipVisionModel": Family("", _CLIP, "pooler"),
    "SiglipForImageClassification": Family("vision_model", _CLIP, "mean"),
    "Siglip2VisionModel": Family("", _CLIP, "pooler"),
    "Siglip2ForImageClassification": Family("vision_model", _CLIP, "mean"),
    "Idefics3VisionTransformer": Family("", _CLIP, "tokens", tower=True),
    "SmolVLMVisionTransformer": Family("", _CLIP, "tokens", tower=True),
    "BeitModel": Family("", "layers", "pooler"),
    "BeitForImageClassification": Family("beit", "layers", "pooled"),
    "BeitBackbone": Family("beit", "layers", "grid"),
}
LAYERS = {
    "ViTLayer", "DeiTLayer", "Dinov2Layer", "Dinov2WithRegistersLayer", "DINOv3ViTLayer",
    "CLIPEncoderLayer", "SiglipEncoderLayer", "Siglip2EncoderLayer", "BeitLayer",
    "Idefics3EncoderLayer", "SmolVLMEncoderLayer",
}  # fmt: skip
ATTENTIONS = {
    "ViTAttention", "DeiTAttention", "Dinov2Attention", "Dinov2WithRegistersAttention",
    "DINOv3ViTAttention", "CLIPAttention", "SiglipAttention", "Siglip2Attention", "BeitAttention",
    "Idefics3VisionAttention", "SmolVLMVisionAttention",
}  # fmt: skip


def known_as(module: object) -> type | None:
    """The library's class in the table that the model is of, or inherits from."""
    for kind in type(module).__mro__:
        if kind.__module__.startswith("transformers.models.") and kind.__name__ in FAMILIES:
            return kind
    return None


def is_library_s(module: object, names: set[str]) -> bool:
    """Is it exactly one of the library's classes of these names?"""
    kind = type(module)
    return kind.__module__.startswith("transformers.models.") and kind.__name__ in names


def family_of(model: object) -> Family:
    kind = known_as(model)
    assert kind is not None
    return FAMILIES[kind.__name__]


def base_of(model: Any) -> Any:
    """The Transformer itself, without a classifier or projection."""
    return model.get_submodule(family_of(model).base)


def blocks_of(model: Any) -> Any:
    return base_of(model).get_submodule(family_of(model).blocks)


def pooler_of(base: Any) -> tuple[str, nn.Module] | None:
    """What the Transformer pools its tokens with, and under which name it has it."""
    for name in ("pooler", "head"):
        pooler = getattr(base, name, None)
        if pooler is not None:
            return name, pooler
    return None


def is_map(pooler: nn.Module) -> bool:
    """Does it pool by attention?"""
    return hasattr(pooler, "probe")


def reads_of(model: Any) -> Reads:
    """As the model stands: a pooler may be absent, or set to read CLS."""
    reads, held = family_of(model).reads, pooler_of(base_of(model))
    pools = held is not None and (
        is_map(held[1]) or getattr(held[1], "layernorm", None) is not None
    )  # BEiT's pooler has a norm where it takes the mean
    if reads == "pooler" and not pools:
        return "tokens"
    return "prefix" if reads == "pooled" and not pools else reads
