"""What timm says of a model: name, input, outputs, transform, class names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

_EVEN = (0.5, 0.5, 0.5)


def _config(model: Any) -> dict[str, Any]:
    return dict(getattr(model, "pretrained_cfg", None) or {})


def name(model: Any) -> str:
    config = _config(model)
    architecture, tag = config.get("architecture") or "", config.get("tag") or ""
    return f"{architecture}.{tag}" if tag else str(architecture)


def input_shape(model: Any) -> tuple[int, int, int]:
    """The size that the model has now: it may have been made with `img_size` or set to another."""
    embed = model.patch_embed
    height, width = embed.img_size
    return _channels(embed), int(height), int(width)


def _channels(embed: Any) -> int:
    """Of the projection, or of the first layer of a stem."""
    return int(next(weight.shape[1] for weight in embed.parameters() if weight.dim() == 4))


def outputs(model: Any) -> int:
    return int(getattr(model, "num_classes", 0))


def transform(model: Any, size: int | None) -> Callable[[Any], Tensor]:
    """timm's own; a model that it knows nothing about gets values in [-1, 1]."""
    from timm.data import create_transform, resolve_data_config

    wanted: dict[str, Any] = {}
    if not _config(model):
        wanted = {"mean": _EVEN, "std": _EVEN, "crop_pct": 1.0}
    channels, *sides = input_shape(model)
    wanted["input_size"] = (channels, *(sides if size is None else (size, size)))
    made: Callable[[Any], Tensor] = create_transform(
        **resolve_data_config(wanted, model=model), is_training=False
    )
    return made


def normalization(model: Any) -> tuple[Sequence[float], Sequence[float]]:
    config = _config(model)
    return tuple(config.get("mean") or _EVEN), tuple(config.get("std") or _EVEN)


def class_names(model: Any) -> list[str]:
    config, count = _config(model), outputs(model)
    if config.get("label_names"):
        return list(config["label_names"])
    if not config:
        return []
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(model)
    if subset is None:
        return []
    known = ImageNetInfo(subset)
    # timm's descriptions list synonyms: the first one names the class.
    return [known.index_to_description(number).partition(",")[0] for number in range(count)]
