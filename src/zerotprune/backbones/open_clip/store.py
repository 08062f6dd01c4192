"""Write and read open_clip's models in folders that open_clip reads as `local-dir:FOLDER`.

An image tower alone has the same format, but only zerotprune reads it: open_clip has no models
without a text tower.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import _build_vision_tower
from torch import nn

from ..storing import (
    difference,
    fill,
    on_meta,
    own_state,
    read_config,
    read_weights,
    write_config,
    write_weights,
)
from .create import preprocessing_of, remember

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_TOWER = "visual."


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write config and weights.

    Args:
        model: A whole open_clip model, or its image tower.
        folder: The folder to write to.
        config: open_clip's model config, if open_clip has none for the model.
    """
    whole = hasattr(model, "visual")
    tower = model.visual if whole else model
    described = _described(model, whole) if config is None else copy.deepcopy(dict(config))
    if differs := difference(model, _twin(described, whole)):
        raise ValueError(f"this model is not what its config describes: {differs}")
    preprocessing = {
        key: value for key, value in preprocessing_of(tower).items() if key not in ("size", "mode")
    }
    write_config(folder / CONFIG, {"model_cfg": described, "preprocess_cfg": preprocessing})
    state = own_state(model)
    if not whole:
        state = {f"{_TOWER}{name}": value for name, value in state.items()}
    write_weights(folder / WEIGHTS, state)


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model of a folder, with or without its weights: a whole model, or an image tower
    if the weights are those of a tower."""
    config = read_config(folder / CONFIG)
    described, preprocessing = config.get("model_cfg"), config.get("preprocess_cfg")
    if not isinstance(described, dict) or not isinstance(preprocessing, dict):
        raise ValueError(f'{folder / CONFIG} lacks "model_cfg" or "preprocess_cfg"')
    whole = _is_whole(folder / WEIGHTS)
    try:
        model: Any = _twin(described, whole, meta=False)
        remember(model.visual if whole else model, preprocessing)
    except Exception as error:  # the config is untrusted and can raise anything
        raise ValueError(
            f"open_clip cannot create the model of {folder / CONFIG}: {error}"
        ) from None
    if weights:
        state = read_weights(folder / WEIGHTS)
        if not whole:
            state = {name.removeprefix(_TOWER): value for name, value in state.items()}
        fill(model, state, folder / WEIGHTS)
    made: nn.Module = model
    return made


def image_tower(model: nn.Module) -> nn.Module:
    """Return the part that takes images alone, with its projection."""
    inner = getattr(model, "visual", None)
    return inner if isinstance(inner, nn.Module) else model


def _is_whole(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no {path.name}: weights are read from safetensors only"
        )
    try:
        with safe_open(path, "pt") as file:
            return not all(name.startswith(_TOWER) for name in file.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def _twin(described: Mapping[str, Any], whole: bool, meta: bool = True) -> nn.Module:
    """Create the model that a config describes, with random weights; none are fetched."""
    config = copy.deepcopy(dict(described))
    if "hf_model_name" in config.get("text_cfg", {}):
        raise ValueError("a text tower of transformers is not saved: save the image tower alone")
    trunk = config["vision_cfg"].get("timm_model_name")
    if trunk and ":" in trunk:
        raise ValueError(f"timm would fetch {trunk!r}: give the name of an architecture of timm")
    config["vision_cfg"] = {**config["vision_cfg"], "timm_model_pretrained": False}
    with on_meta() if meta else torch.device("cpu"), _quietly():
        if not whole:
            quick = bool(config.get("quick_gelu", False))
            tower: nn.Module = _build_vision_tower(config["embed_dim"], config["vision_cfg"], quick)
            return tower
        kind: Any = open_clip.model.CLIP
        if config.pop("custom_text", False):
            coca = "multimodal_cfg" in config
            kind = open_clip.coca_model.CoCa if coca else open_clip.model.CustomTextCLIP
        model: nn.Module = kind(**config)
        return model


def _described(model: Any, whole: bool) -> dict[str, Any]:
    """Find the config of open_clip that describes the model."""
    tower = model.visual if whole else model
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        if not _may_describe(config, tower):
            continue
        try:
            twin = _twin(config, whole)
        except Exception:  # it may need a package that is not here
            continue
        if not difference(model, twin):
            return dict(config)
    raise ValueError("open_clip has no config for this model: give its model config, config={…}")


def _may_describe(config: Mapping[str, Any], tower: Any) -> bool:
    """Return whether the config may describe the model, by comparing a few numbers."""
    vision = config["vision_cfg"]
    trunk = getattr(tower, "trunk", None)
    if trunk is not None:
        name = dict(getattr(trunk, "pretrained_cfg", None) or {}).get("architecture")
        return bool(name and str(vision.get("timm_model_name", "")).partition(".")[0] == name)
    if "timm_model_name" in vision or not hasattr(tower, "transformer"):
        return False
    shape = (len(tower.transformer.resblocks), int(tower.conv1.out_channels), tower.patch_size[0])
    size = vision.get("image_size", 224)
    return bool(
        shape == (vision.get("layers"), vision.get("width"), vision.get("patch_size"))
        and tuple(tower.image_size) == ((size, size) if isinstance(size, int) else tuple(size))
        and config["embed_dim"] == tower.output_dim
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep open_clip from logging what it builds."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
