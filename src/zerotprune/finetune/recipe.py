"""The training recipe, from timm's parts: augmentation, mixup, optimizer, rates, averages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any

from timm.data import Mixup, create_transform
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import Optimizer

from ..backbones import backbone
from ..safety.ranges import RANGES

_RANDAUGMENT = "rand-m9-mstd0.5-inc1"  # DeiT's
#: share of all steps in which the learning rates rise
_WARMUP = 0.1
_TEACHING = 0.5  # weight of either term that a teacher brings


@dataclass(frozen=True)
class Recipe:
    """Epochs, learning rates, augmentation and losses."""

    epochs: Annotated[int, RANGES["epochs"]] = 30
    "Passes over all images."
    lr: Annotated[float, RANGES["lr"]] = 5e-5
    "Learning rate of existing weights: a linear warm-up, then a cosine."
    new_lr: Annotated[float, RANGES["new_lr"]] = 1e-3
    "Learning rate of new weights: a new head, a method's weights."
    weight_decay: Annotated[float, RANGES["weight_decay"]] = 0.05
    "Weight decay of matrices; norms, biases and tokens have none."
    label_smoothing: Annotated[float, RANGES["label_smoothing"]] = 0.1
    "Share of every label that is spread evenly over all classes."
    mixup: Annotated[float, RANGES["mixup"]] = 0.0
    "Mixup's alpha; DeiT's is 0.8."
    cutmix: Annotated[float, RANGES["cutmix"]] = 0.0
    "CutMix's alpha; DeiT's is 1."
    ema: Annotated[float, RANGES["ema"]] = 0.0
    "Decay of a moving average of the weights, such as 0.9999, which is what is written."
    token_weight: Annotated[float, RANGES["token_weight"]] = _TEACHING
    "Weight of the distance to the teacher's tokens in the loss."
    logit_weight: Annotated[float, RANGES["logit_weight"]] = _TEACHING
    "Weight of the divergence from the teacher's predictions in the loss."

    def check(self, taught: bool) -> None:
        """Refuse weights of a teacher's terms in the loss without a teacher."""
        weights = {"--token-weight": self.token_weight, "--logit-weight": self.logit_weight}
        for name, weight in weights.items():
            if not taught and weight not in (0, _TEACHING):
                raise ValueError(
                    f"{name} {weight:g} needs a teacher, and there is none where nothing is pruned "
                    "or the head is new: give --teacher"
                )

    def augmentation(self, model: nn.Module) -> Callable[[Any], Tensor]:
        """Return a random transform to the model's input: crop, flip, RandAugment."""
        vit = backbone(model)
        mean, std = vit.normalization
        transform: Callable[[Any], Tensor] = create_transform(
            vit.input_shape, is_training=True, auto_augment=_RANDAUGMENT, interpolation="bicubic",
            mean=tuple(mean), std=tuple(std),
        )  # fmt: skip
        return transform

    def mixer(self, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """Return what mixes the images and labels of an even batch; None if nothing is mixed."""
        if not self.mixup and not self.cutmix:
            return None
        mixer: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = Mixup(
            mixup_alpha=self.mixup,
            cutmix_alpha=self.cutmix,
            label_smoothing=self.label_smoothing,
            num_classes=classes,
        )
        return mixer

    def optimizer(self, model: nn.Module, new: Collection[nn.Parameter]) -> Optimizer:
        """Return AdamW for all trainable parameters, with `new_lr` for the new ones."""
        no_decay: set[str] = getattr(model, "no_weight_decay", set)()
        new_ids = {id(parameter) for parameter in new}
        groups = []
        for group in param_groups_weight_decay(
            model, self.weight_decay, no_weight_decay_list=no_decay
        ):
            for rate, is_new in ((self.lr, False), (self.new_lr, True)):
                params = [one for one in group["params"] if (id(one) in new_ids) == is_new]
                if params:
                    groups.append({**group, "params": params, "lr": rate})
        optimizer: Optimizer = create_optimizer_v2(groups, "adamw", lr=self.lr)
        return optimizer

    def rates(self, optimizer: Optimizer, steps: int) -> CosineLRScheduler:
        """Return the learning rates over `steps`: a linear rise, then half a cosine."""
        warmup = max(1, round(_WARMUP * steps))
        # Counted from 1, so that the rate is 0 before the first step and after the last one.
        return CosineLRScheduler(optimizer, steps - warmup + 2, warmup_t=warmup, warmup_prefix=True,
                                 t_in_epochs=False)  # fmt: skip

    def average(self, model: nn.Module) -> ModelEmaV3 | None:
        """Return the moving average of the weights, if any, with a decay that warms up."""
        return ModelEmaV3(model, self.ema, use_warmup=True) if self.ema else None
