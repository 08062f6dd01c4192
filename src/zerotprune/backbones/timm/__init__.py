"""timm's Vision Transformers: the VisionTransformer family, EVA (with DINOv3) and BEiT.

Other classes are refused by name, as their forward may do more than ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import timm
import timm.models.beit as beit
import timm.models.eva as eva
import timm.models.vision_transformer as vit
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from ...tokens import Tokens
from ..contract import NO_MASK, Backbone, BlockCall, Parts, Pool
from .blocks import ATTENTIONS, BLOCKS
from .create import build, create, shape_in
from .ending import TimmEnding, averages_prefix, can_enter
from .geometry import attentions, geometry_of
from .store import read, write

__all__ = ["build", "create", "featurize_", "read", "shape_in", "take_apart", "tower", "write"]

_FAMILIES = (vit.VisionTransformer, eva.Eva, beit.Beit)


class _TimmCall(BlockCall):
    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        x, *masks = args
        others = dict(kwargs)
        if masks or others.pop("attn_mask", None) is not None or others.pop("is_causal", False):
            raise ValueError(NO_MASK)
        return x, others


class TimmBackbone(Backbone):
    call = _TimmCall()
    ending_class = TimmEnding
    unserved = ("forward_intermediates",)
    unweighed = ("forward_head",)
    resizing = ("set_input_size",)

    def parts(self, block: nn.Module) -> Parts:
        return BLOCKS[type(block)](block)

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        modules = [module for module in attentions(block) if module is not block]
        # Fused attention does not call its dropout either.
        dropouts = [module.attn_drop for module in attentions(block) if not module.fused_attn]
        return [*getattr(block, "attns", ()), *modules, *dropouts]

    @cached_property
    def _config(self) -> dict[str, Any]:
        """timm's `pretrained_cfg`; empty for a model that it has not published."""
        return dict(getattr(self.model, "pretrained_cfg", None) or {})

    @property
    def name(self) -> str:
        architecture, tag = (self._config.get(key) or "" for key in ("architecture", "tag"))
        return f"{architecture}.{tag}" if tag else str(architecture)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        embed: Any = self.model.patch_embed
        first = next(weight for weight in embed.parameters() if weight.dim() == 4)
        height, width = embed.img_size
        return int(first.shape[1]), int(height), int(width)

    @property
    def any_size(self) -> bool:
        return bool(getattr(self.model, "dynamic_img_size", False))

    @property
    def outputs(self) -> int:
        return int(getattr(self.model, "num_classes", 0))

    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        """Return timm's transform; values are in [-1, 1] for a model without a `pretrained_cfg`."""
        from timm.data import create_transform, resolve_data_config

        channels, *sides = self.input_shape
        mean, std = self.normalization
        args = {"input_size": (channels, *(sides if size is None else (size, size)))}
        default = {} if self._config else {"mean": mean, "std": std, "crop_pct": 1.0}
        config = resolve_data_config(args | default, model=self.model)
        transform: Callable[[Any], Tensor] = create_transform(**config, is_training=False)
        return transform

    @property
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        mean, std = (tuple(self._config.get(key) or (0.5, 0.5, 0.5)) for key in ("mean", "std"))
        return mean, std

    def class_names(self) -> list[str]:
        if self._config.get("label_names"):
            return list(self._config["label_names"])
        from timm.data import ImageNetInfo, infer_imagenet_subset

        subset = infer_imagenet_subset(self.model) if self._config else None
        if subset is None:
            return []
        info = ImageNetInfo(subset)
        # timm's descriptions list synonyms: the first one names the class.
        return [info.index_to_description(index).partition(",")[0] for index in range(self.outputs)]

    def resize_(self, size: int) -> None:
        model: Any = self.model
        if not hasattr(model, "set_input_size"):
            super().resize_(size)
        model.set_input_size((size, size))

    def head_parameters(self) -> list[nn.Parameter]:
        classifier: Any = cast(Any, self.model).get_classifier()  # a distilled model has two
        heads = classifier if isinstance(classifier, tuple) else (classifier,)
        return [weight for head in heads for weight in head.parameters()]

    def reset_head_(self, classes: int) -> None:
        device = next(self.model.parameters()).device
        cast(Any, self.model).reset_classifier(classes)
        self.model.to(device)

    def midway(self) -> Callable[[Tensor, int], Tensor] | None:
        return super().midway() if can_enter(self.model) else None


def tower(model: nn.Module) -> nn.Module:
    """Return the model inside what `features_only=True` makes."""
    return cast(nn.Module, model.model) if isinstance(model, FeatureGetterNet) else model


def featurize_(model: Any, pool: Pool) -> nn.Module:
    """Take the classifier off; pool as timm's `global_pool` does."""
    model = tower(model)
    if pool == "cls" and getattr(model, "cls_token", None) is None:
        raise ValueError(f"{type(model).__name__} has no CLS token to pool: use own or mean")
    if pool == "mean" and averages_prefix(model):
        raise ValueError(f"the head of {type(model).__name__} reads no patches: use own or cls")
    if pool == "own":
        model.reset_classifier(0)
    else:
        model.reset_classifier(0, global_pool={"cls": "token", "mean": "avg"}[pool])
    return cast(nn.Module, model)


#: older versions name parts of EVA and call blocks differently
OLDEST = (1, 0, 20)


def refuse_old(version: str) -> None:
    """Refuse a version whose models are built differently."""
    if tuple(map(int, version.split(".")[:3])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise TypeError(f"cannot prune models of timm {version}: use {oldest} or newer")


def take_apart(model: Any) -> TimmBackbone:
    refuse_old(timm.__version__)
    name = type(model).__name__
    if not isinstance(model, _FAMILIES):
        raise TypeError(f"cannot prune timm's {name}: it is not a VisionTransformer, Eva or Beit")
    if type(model).forward_features not in [family.forward_features for family in _FAMILIES]:
        raise TypeError(f"cannot prune {name}: it has a custom forward_features")
    if not isinstance(getattr(model, "patch_drop", None), (nn.Identity, type(None))):
        raise TypeError(
            f"cannot prune {name} with patch dropout: it drops random tokens before the blocks"
        )
    if getattr(getattr(model, "attn_pool", None), "pos_embed", None) is not None:
        raise TypeError(
            f"cannot prune {name}: its attention pooling adds a position to every patch of the grid"
        )
    blocks = list(model.blocks)
    for number, block in enumerate(blocks, start=1):
        _check(block, number, name)
    return TimmBackbone(model, geometry_of(model, blocks), blocks)


def _check(block: Any, number: int, name: str) -> None:
    if getattr(block, "qkv_bias", None) is not None and not hasattr(block, "attn"):
        raise TypeError(
            f"cannot prune {name} of timm {timm.__version__}: it adds the bias of block {number} "
            "elsewhere than newer versions; use a newer timm"
        )
    kinds: list[tuple[type, Mapping[type, Any]]] = [(type(block), BLOCKS)]
    if type(block) in BLOCKS:
        kinds += [(type(module), ATTENTIONS) for module in attentions(block) if module is not block]
    for kind, supported in kinds:
        if kind not in supported:
            why = "it is not supported"
            if "Diff" in kind.__name__:
                why = "differential attention has negative weights, which are no graph"
            raise TypeError(f"cannot prune {name}: block {number} has a {kind.__name__}, and {why}")
