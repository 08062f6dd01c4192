"""transformers' models by folder or by name on the Hugging Face Hub, giving plain tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging

from ..hub import refuse_unreachable
from .families import FAMILIES

#: what stands for the vision tower of a model that has texts as well
_TOWERS = {
    "CLIPModel": "CLIPVisionModelWithProjection",
    "SiglipModel": "SiglipVisionModel",
    "Siglip2Model": "Siglip2VisionModel",
}


class Answer(nn.Module):
    """Of what a model gives back, the logits; of one without a classifier, its features."""

    def forward(self, given: Any) -> Tensor:
        for name in ("logits", "image_embeds", "pooler_output"):
            found: Tensor | None = getattr(given, name, None)
            if found is not None:
                return found
        features: Tensor = given.last_hidden_state[:, 0]
        return features


def create(name: str, pretrained: bool) -> nn.Module:
    """The model of a folder, or of that name on the Hub, and an `Answer`: images in, logits out.

    A folder without weights serves too, where others are given or none are needed.
    """
    config = _config(name)
    kind = _kind(name, config)
    try:
        if pretrained:
            model = _read(kind, name)
        else:
            model = kind(config)
            model.name_or_path = name
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"transformers cannot make {name!r}: {_first(error)}") from None
    return nn.Sequential(model, Answer())


def read_state(kind: Any, *where: Any, **given: Any) -> tuple[Any, dict[str, list[str]]]:
    """The library's own reading of weights, without its tables and bars, and which keys did not
    fit: those that are missing, unexpected or of another shape."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, told = kind.from_pretrained(*where, output_loading_info=True, **given)
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
    return model, {name: sorted(map(str, told[name])) for name in _WRONG}


def _read(kind: Any, name: str) -> Any:
    model, told = read_state(kind, name, dtype=torch.float32)
    missing = told["missing_keys"]
    if missing and all(key.startswith("pooler.") for key in missing):
        model.pooler = None  # it was published without one: a random one says nothing
    elif missing:
        raise ValueError(f"its weights lack {missing[0]}")
    return model


_WRONG = ("missing_keys", "unexpected_keys", "mismatched_keys")


def _config(name: str) -> Any:
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"{name} holds no config.json: it is not a model of transformers")
    elif folder.is_absolute() or name.count("/") > 1 or name.startswith("."):
        raise ValueError(f"no folder at {name}: give that of a model, or its name on the Hub")
    else:
        refuse_unreachable(name, name, ["config.json"], "give a local folder, hf:FOLDER")
    try:
        return transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"transformers cannot read {name!r}: {_first(error)}") from None


def _kind(name: str, config: Any) -> Any:
    """The class that the config names, if it is one that can be pruned."""
    named = [_TOWERS.get(each, each) for each in config.architectures or []]
    known = [each for each in named if each in FAMILIES and _answers(each)]
    if not known:
        meant = ", ".join(named) or f"{type(config).__name__} and no architecture"
        raise ValueError(
            f"{name} is a {meant}: the command line takes image classifiers and base models of "
            "ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP and BEiT"
        )
    if known[0].startswith("Siglip2"):
        raise ValueError(
            f"{name} is a {known[0]}, which takes patches and not images: use it in Python"
        )
    vision = getattr(config, "vision_config", config)
    if known[0] == "SiglipVisionModel" and not getattr(vision, "vision_use_head", True):
        raise ValueError(
            f"{name} is a SigLIP without its head, and nothing else makes one answer of its "
            "patches: use it in Python"
        )
    return getattr(transformers, known[0])


def _answers(kind: str) -> bool:
    """Does it give one vector for an image, and not one for each patch alone?"""
    family = FAMILIES[kind]
    return family.reads != "grid" and not family.tower


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
