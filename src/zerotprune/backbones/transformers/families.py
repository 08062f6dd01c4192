"""transformers' models by class name: where their blocks are, and what is read of their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..contract import Reading

#: What is read of the tokens that leave the last block:
#: "prefix"  prefix tokens alone, by a classifier that shows no others
#: "tokens"  all: they are the output, whatever else is pooled from the prefix tokens
#: "mean"    the mean over the patches, by a classifier
#: "pooler"  all, and by a pooler that reads patches
#: "pooled"  what such a pooler returns, by a classifier
#: "grid"    every patch in its place
Reads = Literal["prefix", "tokens", "mean", "pooler", "pooled", "grid"]


@dataclass(frozen=True)
class Family:
    """Where the parts of a class of models are."""

    base: str  # path of the Transformer in the model; "" where it is the model
    blocks: str  # path of the blocks in the Transformer
    reads: Reads
    tower: bool = False  # only a part of other models, which pass it a mask of patches


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


#: older versions have other layouts; that of DINOv2 changed once more, in 5.18
OLDEST = (5, 17)


def refuse_old(version: str) -> None:
    """Refuse a version whose models have other names for their parts."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise TypeError(f"cannot prune models of transformers {version}: use {oldest} or newer")


def known_as(module: object) -> type | None:
    """Return the class in `FAMILIES` that the model is of or inherits from."""
    for kind in type(module).__mro__:
        if kind.__module__.startswith("transformers.models.") and kind.__name__ in FAMILIES:
            return kind
    return None


def is_exactly(module: object, names: set[str]) -> bool:
    """Return whether the module is exactly one of these classes of the library."""
    kind = type(module)
    return kind.__module__.startswith("transformers.models.") and kind.__name__ in names


def family_of(model: object) -> Family:
    kind = known_as(model)
    assert kind is not None
    return FAMILIES[kind.__name__]


def base_of(model: Any) -> Any:
    """Return the Transformer itself, without a classifier or projection."""
    return model.get_submodule(family_of(model).base)


def blocks_of(model: Any) -> Any:
    return base_of(model).get_submodule(family_of(model).blocks)


def pooler_of(base: Any) -> tuple[str, nn.Module] | None:
    """Return name and module of the Transformer's pooler, if it has one."""
    for name in ("pooler", "head"):
        pooler = getattr(base, name, None)
        if pooler is not None:
            return name, pooler
    return None


def is_map(pooler: nn.Module) -> bool:
    """Return whether the pooler is an attention pooler."""
    return hasattr(pooler, "probe")


#: set on a base model whose patches its caller averages
AVERAGED = "zerotprune_averaged"


def reads_of(model: Any) -> Reads:
    """Return what the model reads: a pooler may be absent, or read CLS."""
    if getattr(model, AVERAGED, False):
        return "mean"
    reads, named = family_of(model).reads, pooler_of(base_of(model))
    pools = named is not None and (
        is_map(named[1]) or getattr(named[1], "layernorm", None) is not None
    )  # BEiT's pooler has a norm where it takes the mean
    if reads == "pooler" and not pools:
        return "tokens"
    return "prefix" if reads == "pooled" and not pools else reads


#: paths of the towers of models whose language model takes any number of image tokens
_TOWERS = {
    "LlavaModel": "vision_tower",
    "LlavaForConditionalGeneration": "model.vision_tower",
    "PaliGemmaModel": "vision_tower",
    "PaliGemmaForConditionalGeneration": "model.vision_tower",
}


def reading(model: Any) -> Reading:
    """Return what LLaVA or PaliGemma reads of its tower."""
    kind, config = type(model), model.config
    if kind.__name__ not in _TOWERS or not kind.__module__.startswith("transformers.models."):
        raise TypeError(
            f"expected LLaVA or PaliGemma, got {kind.__name__}: prune other towers with "
            'outputs="grid", which leaves their prompts as they are'
        )
    layers = getattr(config, "vision_feature_layer", -1)  # PaliGemma reads the last
    return Reading(
        tower=model.get_submodule(_TOWERS[kind.__name__]),
        states=(layers,) if isinstance(layers, int) else tuple(layers),
        left_out=int(getattr(config, "vision_feature_select_strategy", "full") == "default"),
    )
