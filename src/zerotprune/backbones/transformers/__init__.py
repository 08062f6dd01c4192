"""Hugging Face transformers' Vision Transformers: ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, BEiT.

A class that is not listed is refused by name: its forward may do what ours would silently leave
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import transformers
from torch import Tensor, nn

from ...task import Parts
from ..contract import Backbone
from ..size_weighted import SizeWeighted
from .attention import attention_of
from .blocks import PreNorm, TransformersCall
from .create import Answer, create, read_state
from .families import (
    ATTENTIONS,
    LAYERS,
    base_of,
    blocks_of,
    family_of,
    is_library_s,
    known_as,
    reads_of,
)
from .forwards import RECORDING, Checked
from .geometry import geometry_of, image_size
from .prefix_only import TransformersPrefixOnly
from .preprocessing import Preprocessing
from .reading import reading
from .resizing import resize_
from .size_weighted import TransformersSizeWeighted

__all__ = ["create", "reading", "take_apart"]

#: the layout of its models changed often before this
OLDEST = (5, 17)


class TransformersBackbone(Backbone):
    call = TransformersCall()
    recorders = (RECORDING,)

    def parts(self, block: nn.Module) -> Parts:
        size, tower = image_size(base_of(self.model)), family_of(self.model).tower
        return PreNorm(block, self.geometry.tokens, size, tower)

    @property
    def name(self) -> str:
        """Where the weights came from: a name on the hub, or a folder's."""
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
        names = [str(config.id2label[at]) for at in range(self.outputs)]
        # The library's own for classes that nobody named, and the first of several synonyms.
        if names == [f"LABEL_{at}" for at in range(self.outputs)]:
            return []
        return [name.partition(",")[0] for name in names]

    def under_own_names(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The library writes files under the names of older versions, and turns them over when it
        reads them."""
        model: Any = self.model
        if state.keys() == model.state_dict().keys():
            return state
        read, told = read_state(type(model), None, config=model.config, state_dict=dict(state))
        return state if any(told.values()) else dict(read.state_dict())

    def resize_(self, size: int) -> None:
        if not resize_(base_of(self.model), size):
            super().resize_(size)

    def prefix_only(self, otherwise: SizeWeighted | None = None) -> TransformersPrefixOnly:
        return TransformersPrefixOnly(self.model, otherwise)

    def size_weighted(self, proportional: float) -> TransformersSizeWeighted | None:
        """None where all tokens are the output, and nothing is pooled from patches."""
        pools = reads_of(self.model) in ("mean", "pooler", "pooled")
        return TransformersSizeWeighted(self.model, proportional) if pools else None

    def checked(self) -> Checked:
        return Checked(self.model)

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
        raise TypeError(f"cannot prune {name}: it has a forward of its own")
    for number, block in enumerate(blocks_of(model), start=1):
        for part, names in ((block, LAYERS), (attention_of(block), ATTENTIONS)):
            if not is_library_s(part, names):
                raise TypeError(
                    f"cannot prune {name}: block {number} has a {type(part).__name__}, and it is "
                    "not known to the library"
                )
        if not hasattr(attention_of(block), "q_proj"):  # DINOv2 was the last to be like the others
            raise TypeError(
                f"cannot prune {name} of transformers {transformers.__version__}: its attention "
                "has no q_proj, as it has in newer versions"
            )
    return TransformersBackbone(model, geometry_of(model), list(blocks_of(model)))


def refuse_old(version: str) -> None:
    """The names and places of a model's parts are those of newer versions."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise TypeError(
            f"cannot prune models of transformers {version}: version {wanted} or newer is needed"
        )


#: parts of the names of models whose tokens cannot be pruned alone, and why
_REASONS = {
    "Swin": "its windows are cut out of the whole grid",
    "Hiera": "it pools windows of the whole grid",
    "Qwen": "it packs the tokens of all images into one row, in windows and groups of four",
    "Masked": "it gives back every patch",
    "Segmentation": "it gives back every patch",
    "PreTraining": "it gives back every patch",
}


def _why(model: nn.Module) -> str:
    for part, why in _REASONS.items():
        if part in type(model).__name__:
            return why
    for path, held in model.named_modules():
        if known_as(held) is not None:
            return f"it holds a {type(held).__name__} at .{path}: pass model.{path}"
    return "it is not one of the Vision Transformers that are known to the library"
