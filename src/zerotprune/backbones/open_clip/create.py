"""Create open_clip's image towers by name, with their preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import open_clip
from open_clip.model import _build_vision_tower, set_model_preprocess_cfg
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch import Tensor, nn

from .. import refuse_unreachable

_FIELDS = {field.name for field in fields(PreprocessCfg)} - {"size"}


def create(name: str, pretrained: bool) -> nn.Module:
    """Create the image tower of an open_clip model.

    Args:
        name: `ViT-B-32`, or with the tag of its weights, `ViT-B-32.openai`.
        pretrained: Load the weights of that tag.
    """
    architecture, _, tag = name.partition(".")
    config = open_clip.get_model_config(architecture)
    if config is None:
        raise ValueError(
            f"unknown model {name!r}: open_clip {open_clip.__version__} has no such model"
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tag not in (*tags, "") or (pretrained and not tag):
        some = ", ".join(f"{architecture}.{known}" for known in tags[:3])
        raise ValueError(
            f"{name!r} has no tag of weights: give a local file with --weights"
            + (f", or one of open_clip's {len(tags)} tags, such as {some}" if tags else "")
        )
    published = open_clip.get_pretrained_cfg(architecture, tag or (*tags, "")[0])
    if pretrained:
        return _fetch(architecture, tag, published)
    quick = (tag and published.get("quick_gelu")) or config.get("quick_gelu", False)
    tower: nn.Module = _build_vision_tower(config["embed_dim"], config["vision_cfg"], bool(quick))
    remember(tower, published)
    return tower


def _fetch(architecture: str, tag: str, published: Mapping[str, Any]) -> nn.Module:
    name = f"{architecture}.{tag}"
    if published.get("hf_hub"):
        hub = published["hf_hub"].rstrip("/")
        files = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
        refuse_unreachable(name, hub, files)
    try:
        whole = open_clip.create_model(architecture, tag)
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"cannot fetch the pretrained weights of {name}: {reason}; "
            "give a local file with --weights"
        ) from None
    remember(whole.visual, whole.visual.preprocess_cfg)
    tower: nn.Module = whole.visual
    return tower


def remember(tower: Any, published: Mapping[str, Any]) -> None:
    """Store the preprocessing where open_clip keeps it, and for a timm trunk where timm does."""
    options = {key: value for key, value in published.items() if key in _FIELDS}
    config = asdict(PreprocessCfg(size=tower.image_size, **options))
    set_model_preprocess_cfg(tower, config)
    trunk = getattr(tower, "trunk", None)
    if trunk is not None:
        words = {key: config[key] for key in ("mean", "std", "interpolation")}
        squash = {"crop_pct": 1.0, "crop_mode": _CROPS[config["resize_mode"]]}
        trunk.pretrained_cfg = {**dict(trunk.pretrained_cfg), **words, **squash}


#: open_clip's `resize_mode` → timm's `crop_mode`
_CROPS = {"shortest": "center", "squash": "squash", "longest": "border"}


def preprocessing_of(model: Any) -> dict[str, Any]:
    """Return the preprocessing that the tower was created with, by default OpenAI's."""
    return {**asdict(PreprocessCfg()), **getattr(model, "preprocess_cfg", {})}


def preprocess(model: Any, size: Any) -> Callable[[Any], Tensor]:
    config = PreprocessCfg(**{**preprocessing_of(model), "size": size})
    transform: Callable[[Any], Tensor] = image_transform_v2(config, is_train=False)
    return transform


def own_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the image tower's weights from those of a whole CLIP model."""
    prefix = "visual."
    tower = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
    return tower or dict(state)
