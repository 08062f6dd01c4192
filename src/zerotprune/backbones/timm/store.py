"""Write and read timm's models in folders that timm reads as `local-dir:FOLDER`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from torch import nn

from ..storing import (
    CONFIG,
    WEIGHTS,
    difference,
    fill,
    on_meta,
    own_state,
    read_config,
    read_weights,
    write_config,
    write_weights,
)

#: fields of `pretrained_cfg` that say where published weights are: these are in the folder
_SOURCES = {
    "url", "file", "hf_hub_id", "hf_hub_filename", "source", "custom_load", "state_dict",
    "architecture", "label_names", "label_descriptions",
}  # fmt: skip
#: the architecture of models that were built by shape
_PLAIN = "vit_tiny_patch16_224"


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: A timm model.
        folder: The folder to write to.
        config: timm's `model_args`, if they cannot be read off the model.
    """
    if not hasattr(model, "patch_embed"):
        raise TypeError(
            f"cannot save {type(model).__name__} of features_only=True: save its .model"
        )
    published = dict(getattr(model, "pretrained_cfg", None) or {})
    architecture = published.get("architecture") or _PLAIN
    args = _model_args(model, architecture) if config is None else dict(config)
    with on_meta():
        twin = timm.create_model(architecture, **args)
    if differs := difference(model, twin):
        raise ValueError(
            f"cannot infer the arguments of this {architecture}: with {args or 'none'} {differs}; "
            "give those of timm.create_model, config={…}"
        )
    labels = {
        key: published[key] for key in ("label_names", "label_descriptions") if published.get(key)
    }
    kept = {key: value for key, value in published.items() if key not in _SOURCES}
    kept["input_size"] = [_channels(model), *model.patch_embed.img_size]
    classifier = "head" if not hasattr(model, "head_dist") else ["head", "head_dist"]
    write_config(
        folder / CONFIG,
        {
            "architecture": architecture,
            "num_classes": model.num_classes,
            "num_features": model.num_features,
            "global_pool": model.global_pool,
            **labels,
            "model_args": args,
            "pretrained_cfg": {"first_conv": "patch_embed.proj", "classifier": classifier} | kept,
        },
    )
    write_weights(folder / WEIGHTS, own_state(model))


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model of a folder, with or without its weights."""
    config = read_config(folder / CONFIG)
    architecture, args = config.get("architecture"), config.get("model_args") or {}
    published = config.get("pretrained_cfg") or {}
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise ValueError(
            f"{folder / CONFIG}: timm {timm.__version__} has no architecture {architecture!r}"
        )
    if not isinstance(args, dict) or not isinstance(published, dict):
        raise ValueError(f'{folder / CONFIG}: "model_args" and "pretrained_cfg" are JSON objects')
    if reserved := sorted(args.keys() & inspect.signature(timm.create_model).parameters.keys()):
        raise ValueError(f"{folder / CONFIG}: a model has no argument {reserved[0]}")
    published = {key: value for key, value in published.items() if key not in _SOURCES}
    for key in ("label_names", "label_descriptions", "num_classes"):
        if key in config:
            published[key] = config[key]
    try:
        model: nn.Module = timm.create_model(architecture, pretrained_cfg=published, **args)
    except Exception as error:  # the arguments are untrusted and can raise anything
        raise ValueError(f"timm cannot create the model of {folder / CONFIG}: {error}") from None
    if weights:
        fill(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    return model


def _model_args(model: Any, architecture: str) -> dict[str, Any]:
    """Infer the arguments of timm.create_model from the modules of the model."""
    with on_meta():
        usual: Any = timm.create_model(architecture)
    shown, default = _arguments(model), _arguments(usual)
    return {
        name: value
        for name, value in shown.items()
        if value is not None and value != default.get(name)
    }


def _arguments(model: Any) -> dict[str, Any]:
    embed, block = model.patch_embed, model.blocks[0]
    fc1, attention = getattr(getattr(block, "mlp", None), "fc1", None), getattr(block, "attn", None)
    return {
        "num_classes": model.num_classes,
        "global_pool": model.global_pool,
        "img_size": list(embed.img_size),
        "patch_size": list(embed.patch_size) if isinstance(embed.patch_size, tuple) else None,
        "in_chans": _channels(model),
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": getattr(attention, "num_heads", None),
        "mlp_ratio": None if fc1 is None else fc1.out_features / model.embed_dim,
        "dynamic_img_size": getattr(model, "dynamic_img_size", None),
        "dynamic_img_pad": getattr(embed, "dynamic_img_pad", None),
    }


def _channels(model: Any) -> int:
    first = next(weight for weight in model.patch_embed.parameters() if weight.dim() == 4)
    return int(first.shape[1])
