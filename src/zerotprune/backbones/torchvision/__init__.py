"""torchvision's `VisionTransformer`: vit_b_16 to vit_h_14, with the SWAG weights' larger images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torchvision.models.vision_transformer as vit
from torch import Tensor, nn

from ...cost import Geometry
from ..attention import PackedBlock, why_not_packed
from ..contract import Backbone, Parts, Pool
from ..counting import linear_macs, module_macs, norm_values, packed_shape
from ..ending import Ending
from .create import create, entry_of, name_of, read, shape_in, write
from .ending import TorchvisionEnding

__all__ = ["create", "featurize_", "read", "shape_in", "take_apart", "write"]

#: the modules of a block that act on the output of its attention
_AFTER_ATTENTION = ("dropout",)


class TorchvisionBackbone(Backbone):
    ending_class = TorchvisionEnding

    def parts(self, block: nn.Module) -> Parts:
        return PackedBlock(block, "self_attention", _AFTER_ATTENTION)

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        return [cast(nn.Module, block.self_attention)]

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        size = int(self.model.image_size)  # type: ignore[arg-type]
        return 3, size, size

    @property
    def outputs(self) -> int:
        return int(getattr(_classifier(self.model), "out_features", 0))

    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        """Return the transform of the weights. At another size, crop the same share."""
        preset: Any = entry_of(self.model).transforms()
        side = size or self.input_shape[1]
        crop, resize = preset.crop_size[0], preset.resize_size[0]
        preset.crop_size, preset.resize_size = [side], [round(side * resize / crop)]
        transform: Callable[[Any], Tensor] = preset
        return transform

    @property
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        preset: Any = entry_of(self.model).transforms()
        return tuple(preset.mean), tuple(preset.std)

    def class_names(self) -> list[str]:
        names = list(entry_of(self.model).meta["categories"])
        return names if len(names) == self.outputs else []

    def resize_(self, size: int) -> None:
        model: Any = self.model
        if size % model.patch_size:
            raise ValueError(f"size must be a multiple of {model.patch_size}, got {size}")
        state = {"encoder.pos_embedding": model.encoder.pos_embedding.data}
        positions = vit.interpolate_embeddings(size, model.patch_size, state)
        model.encoder.pos_embedding = nn.Parameter(positions["encoder.pos_embedding"])
        model.image_size, model.seq_length = size, model.encoder.pos_embedding.shape[1]

    def head_parameters(self) -> list[nn.Parameter]:
        classifier = _classifier(self.model)
        return [] if classifier is None else list(classifier.parameters())

    def reset_head_(self, classes: int) -> None:
        classifier: Any = _classifier(self.model)
        if not isinstance(classifier, nn.Linear):
            super().reset_head_(classes)
        like = classifier.weight
        head = nn.Linear(classifier.in_features, classes, device=like.device, dtype=like.dtype)
        cast(Any, self.model).heads.head = head

    def ending(
        self, *, prefix_only: bool = False, proportional: float | None = None
    ) -> Ending | None:
        return super().ending(prefix_only=prefix_only)  # the head pools nothing


def featurize_(model: Any, pool: Pool) -> nn.Module:
    """Remove the classifier, which reads the CLS token."""
    if pool == "mean":
        raise ValueError("torchvision's models read their CLS token alone: use own or cls")
    model.heads = nn.Identity()
    return cast(nn.Module, model)


def take_apart(model: Any) -> TorchvisionBackbone:
    name = type(model).__name__
    if not isinstance(model, vit.VisionTransformer):
        raise TypeError(f"cannot prune torchvision's {name}: it is not a VisionTransformer")
    if type(model).forward is not vit.VisionTransformer.forward:
        raise TypeError(f"cannot prune {name}: it has a custom forward")
    if type(model.encoder) is not vit.Encoder:
        raise TypeError(f"cannot prune {name}: its encoder was replaced by something else")
    blocks = list(model.encoder.layers)
    for number, block in enumerate(blocks, start=1):
        why = f"a {type(block).__name__} is not supported"
        if type(block) is vit.EncoderBlock:
            why = why_not_packed(block.self_attention)
        if why:
            raise TypeError(f"cannot prune {name}, block {number}: {why}")
    return TorchvisionBackbone(model, _geometry(model, blocks), blocks)


def _geometry(model: Any, blocks: list[Any]) -> Geometry:
    side = model.image_size // model.patch_size
    return Geometry(
        blocks=tuple(
            packed_shape(block, block.self_attention, _AFTER_ATTENTION) for block in blocks
        ),
        grid=(side, side),
        prefix=1,
        cls=True,
        pools_patches=False,
        dim=model.hidden_dim,
        stem=module_macs(model.conv_proj, (1, 3, model.image_size, model.image_size)),
        stem_norms=0,
        head=linear_macs(model.heads),
        head_token=0,
        head_pair=0,
        head_norms=norm_values(model.encoder.ln),
        head_norms_once=0,
    )


def _classifier(model: Any) -> nn.Module | None:
    """Return the layer whose outputs are the classes: users replace it, or all of `heads`."""
    head: nn.Module = getattr(model.heads, "head", model.heads)
    return head if isinstance(head, nn.Linear) else None
