"""Hugging Face transformers' Vision Transformers: ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, BEiT.

Other classes are refused by name, as their forward may do more than ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import transformers
from torch import Tensor, nn

from ..contract import Backbone, Parts
from ..ending import Ending
from .blocks import PreNorm, TransformersCall, attention_of
from .create import Answer, create, featurize_, read_state
from .ending import TransformersEnding, pools
from .families import (
    ATTENTIONS,
    LAYERS,
    base_of,
    blocks_of,
    family_of,
    is_exactly,
    known_as,
    reading,
    refuse_old,
)
from .geometry import geometry_of, image_size, resize_
from .preprocessing import Preprocessing
from .store import read, saving, write

__all__ = ["create", "featurize_", "read", "reading", "take_apart", "write"]


class TransformersBackbone(Backbone):
    call = TransformersCall()
    ending_class = TransformersEnding
    any_size = True  # with `interpolate_pos_encoding`, if the positions need it

    def parts(self, block: nn.Module) -> Parts:
        return PreNorm(block, self.geometry.prefix, family_of(self.model).tower)

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        return [attention_of(block)]

    @property
    def name(self) -> str:
        """The last part of the folder or of the name on the Hub that the weights came from."""
        return str(self.model.name_or_path).rstrip("/").rpartition("/")[2]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        base: Any = base_of(self.model)
        return (int(base.config.num_channels), *image_size(base))

    @property
    def outputs(self) -> int:
        model: Any = self.model
        return int(model.num_labels) if base_of(model) is not model and _classifies(model) else 0

    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        _, height, width = self.input_shape
        return self._preprocessing.transform((height, width) if size is None else (size, size))

    @property
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        return self._preprocessing.mean, self._preprocessing.std

    @property
    def _preprocessing(self) -> Preprocessing:
        return Preprocessing.of(self.model, self.input_shape[1:])

    def class_names(self) -> list[str]:
        config: Any = self.model.config
        names = [str(config.id2label[index]) for index in range(self.outputs)]
        if names == [f"LABEL_{index}" for index in range(self.outputs)]:
            return []  # the library's default
        return [name.partition(",")[0] for name in names]  # the first of several synonyms

    def under_own_names(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Let the library rename the weights: its files use the names of older versions."""
        model: Any = self.model
        if state.keys() == model.state_dict().keys():
            return state
        read, misfits = read_state(type(model), None, config=model.config, state_dict=dict(state))
        return state if any(misfits.values()) else dict(read.state_dict())

    def resize_(self, size: int) -> None:
        if not resize_(base_of(self.model), size):
            super().resize_(size)

    def ending(self, *, prefix_only: bool = False, proportional: float | None = None) -> Ending:
        """Always return an ending: it refuses calls that need an unpruned model."""
        return TransformersEnding(
            self.model,
            prefix_only=prefix_only,
            proportional=proportional if prefix_only or pools(self.model) else None,
        )

    def saving(self, note: Mapping[str, Any]) -> dict[str, functools.partial[Any]]:
        return saving(self.model, note)

    def giving_tensors(self) -> nn.Module:
        return nn.Sequential(self.model, Answer())

    def midway(self) -> None:
        return None


def _classifies(model: nn.Module) -> bool:
    return any("classifier" in name for name, _ in model.named_children())


def take_apart(model: Any) -> TransformersBackbone:
    refuse_old(transformers.__version__)
    name, kind = type(model).__name__, known_as(model)
    if kind is None:
        raise TypeError(f"cannot prune transformers' {name}: {_why(model)}")
    if type(model).forward is not kind.forward:  # type: ignore[attr-defined]
        raise TypeError(f"cannot prune {name}: it has a custom forward")
    for number, block in enumerate(blocks_of(model), start=1):
        for part, names in ((block, LAYERS), (attention_of(block), ATTENTIONS)):
            if not is_exactly(part, names):
                raise TypeError(
                    f"cannot prune {name}: block {number} has a {type(part).__name__}, and it is "
                    "not supported"
                )
        if not hasattr(attention_of(block), "q_proj"):  # DINOv2's was the last to get one
            raise TypeError(
                f"cannot prune {name} of transformers {transformers.__version__}: its attention "
                "has no q_proj; use a newer version"
            )
    return TransformersBackbone(model, geometry_of(model), list(blocks_of(model)))


#: part of a class name → why such a model cannot be pruned
_REASONS = {
    "Swin": "its windows need the whole grid",
    "Hiera": "it pools windows of the whole grid",
    "Qwen": "it packs the tokens of all images into one sequence, in windows and groups of four",
    "Masked": "it returns every patch",
    "Segmentation": "it returns every patch",
    "PreTraining": "it returns every patch",
}


def _why(model: nn.Module) -> str:
    for part, why in _REASONS.items():
        if part in type(model).__name__:
            return why
    for path, module in model.named_modules():
        if known_as(module) is not None:
            return f"it holds a {type(module).__name__} at .{path}: pass model.{path}"
    return "it is not one of the supported Vision Transformers"
