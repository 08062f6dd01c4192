"""Create transformers' models from a folder or the Hugging Face Hub, returning plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging

from .. import refuse_unreachable
from ..contract import Pool
from .families import AVERAGED, FAMILIES, base_of, pooler_of
from .geometry import prefix_of

#: the class of the vision tower of a model that has a text tower as well
_TOWERS = {
    "CLIPModel": "CLIPVisionModelWithProjection",
    "SiglipModel": "SiglipVisionModel",
    "Siglip2Model": "Siglip2VisionModel",
}


class Answer(nn.Module):
    """Select from a model's outputs the logits, or the features if it has no classifier."""

    def forward(self, outputs: Any) -> Tensor:
        for name in ("logits", "image_embeds", "pooler_output"):
            output: Tensor | None = getattr(outputs, name, None)
            if output is not None:
                return output
        features: Tensor = outputs.last_hidden_state[:, 0]
        return features


class Vector(nn.Module):
    """Select one vector for an image from a base model's outputs.

    Args:
        pool: As in `featurize_`.
        prefix: The number of tokens before the patches.
    """

    def __init__(self, pool: Pool, prefix: int) -> None:
        super().__init__()
        self.pool, self.prefix = pool, prefix

    def forward(self, outputs: Any) -> Tensor:
        if self.pool == "own":
            for name in ("image_embeds", "pooler_output"):
                output: Tensor | None = getattr(outputs, name, None)
                if output is not None:
                    return output
        tokens: Tensor = outputs.last_hidden_state
        return tokens[:, self.prefix :].mean(dim=1) if self.pool == "mean" else tokens[:, 0]


def featurize_(model: Any, pool: Pool) -> nn.Module:
    """Return the base model with a `Vector`; "own" is CLIP's projection, the output of the pooler,
    or CLS."""
    projects = pool == "own" and hasattr(model, "visual_projection")
    base = model if projects else base_of(model)
    prefix = prefix_of(base_of(model))
    if pool == "cls" and not prefix:
        raise ValueError(f"{type(model).__name__} has no CLS token to pool: use own or mean")
    if pool == "own" and not prefix and pooler_of(base) is None:
        pool = "mean"
    setattr(base, AVERAGED, pool == "mean")
    return nn.Sequential(base, Vector(pool, prefix))


def create(name: str, pretrained: bool) -> nn.Module:
    """Create a transformers model with an `Answer`: images in, logits out.

    Args:
        name: A folder, or a name on the Hugging Face Hub. Without `pretrained` a folder needs no
            weights.
        pretrained: Load the weights.
    """
    config = _config(name)
    kind = _kind(name, config)
    try:
        if pretrained:
            model = _load(kind, name)
        else:
            model = kind(config)
            model.name_or_path = name
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"transformers cannot create {name!r}: {_first_line(error)}") from None
    return nn.Sequential(model, Answer())


_MISFITS = ("missing_keys", "unexpected_keys", "mismatched_keys")


def read_state(kind: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, list[str]]]:
    """Call `kind.from_pretrained` without its tables and bars; return the model and the keys that
    were missing, unexpected or of another shape."""
    with quietly():
        model, info = kind.from_pretrained(*args, output_loading_info=True, **kwargs)
    return model, {name: sorted(map(str, info[name])) for name in _MISFITS}


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the library from logging and from drawing bars."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _load(kind: Any, name: str) -> Any:
    config = kind.config_class.from_pretrained(name)
    refuse_kernels(config)
    model, misfits = read_state(kind, name, config=config, dtype=torch.float32)
    missing = misfits["missing_keys"]
    if missing and all(key.startswith("pooler.") for key in missing):
        model.pooler = None  # it was published without one: a random one is useless
    elif missing:
        raise ValueError(f"its weights lack {missing[0]}")
    return model


def _config(name: str) -> Any:
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"{name} has no config.json: it is not a transformers model")
    elif folder.is_absolute() or name.count("/") > 1 or name.startswith("."):
        raise ValueError(f"no folder {name}: give the folder of a model, or its name on the Hub")
    else:
        refuse_unreachable(name, name, ["config.json"], "give a local folder, hf:FOLDER")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        refuse_kernels(config)
    except (OSError, ValueError) as error:
        raise ValueError(f"transformers cannot read {name!r}: {_first_line(error)}") from None
    return config


def refuse_kernels(config: Any) -> None:
    """Refuse a config that names an attention kernel on the Hub, which would be fetched and run."""
    kernel = config._attn_implementation
    if "/" in str(kernel):
        raise ValueError(
            f"its config asks for the code of the attention kernel {kernel}: remove "
            "attn_implementation from the config"
        )
    for part in vars(config).values():
        if isinstance(part, transformers.PretrainedConfig):
            refuse_kernels(part)


def _kind(name: str, config: Any) -> Any:
    """Return the class that the config names, if it can be pruned."""
    named = [_TOWERS.get(kind, kind) for kind in config.architectures or []]
    supported = [kind for kind in named if kind in FAMILIES and _answers(kind)]
    if not supported:
        meant = ", ".join(named) or f"{type(config).__name__} and no architecture"
        raise ValueError(
            f"{name} is a {meant}: the command line takes image classifiers and base models of "
            "ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP and BEiT"
        )
    if supported[0].startswith("Siglip2"):
        raise ValueError(
            f"{name} is a {supported[0]}, which takes patches instead of images: use it in Python"
        )
    vision = getattr(config, "vision_config", config)
    if supported[0] == "SiglipVisionModel" and not getattr(vision, "vision_use_head", True):
        raise ValueError(
            f"{name} is a SigLIP without a head, and returns only patches: use it in Python"
        )
    return getattr(transformers, supported[0])


def _answers(kind: str) -> bool:
    """Return whether the model returns one vector per image, not only one per patch."""
    family = FAMILIES[kind]
    return family.reads != "grid" and not family.tower


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
