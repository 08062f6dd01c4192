"""The recipe of a training, of timm's parts: augmentation, mixup, optimizer, rates, averages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from timm.data import Mixup, create_transform
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import Optimizer

from ..backbones import backbone

_RANDAUGMENT = "rand-m9-mstd0.5-inc1"  # DeiT's
#: share of all steps in which the learning rates rise
_WARM = 0.1


@dataclass(frozen=True)
class Recipe:
    """How long, how fast and by what a model learns."""

    epochs: int = 30
    "How often every image is seen."
    lr: float = 5e-5
    "Learning rate of the weights that are there; it rises at first, then falls by a cosine."
    new_lr: float = 1e-3
    "Learning rate of what is new: a new head, a method's own weights."
    weight_decay: float = 0.05
    "Of matrices; norms, biases and tokens have none."
    label_smoothing: float = 0.1
    "Share of each label that goes to all classes alike."
    mixup: float = 0.0
    "How much images are mixed, alpha of a beta distribution; DeiT's is 0.8."
    cutmix: float = 0.0
    "How much is cut from one image into another; DeiT's is 1."
    ema: float = 0.0
    "Keep a moving average of the weights by this decay, such as 0.9999; it is what is written."
    token_weight: float = 0.5
    "Of the distance to the teacher's tokens in the loss."
    logit_weight: float = 0.5
    "Of the divergence from the teacher's classes in the loss."

    def augmentation(self, model: nn.Module) -> Callable[[Any], Tensor]:
        """Makes a PIL image the model's input by chance: crop, flip, RandAugment."""
        vit = backbone(model)
        mean, std = vit.normalization
        made: Callable[[Any], Tensor] = create_transform(
            vit.input_shape, is_training=True, auto_augment=_RANDAUGMENT, interpolation="bicubic",
            mean=tuple(mean), std=tuple(std),
        )  # fmt: skip
        return made

    def mixer(self, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """Mixes the images and labels of an even batch; None where nothing is mixed."""
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
        """AdamW over what is to learn."""
        spared: set[str] = getattr(model, "no_weight_decay", set)()
        fresh = {id(each) for each in new}
        groups = []
        for group in param_groups_weight_decay(model, self.weight_decay, True, spared):
            for rate, mine in ((self.lr, False), (self.new_lr, True)):
                held = [each for each in group["params"] if (id(each) in fresh) == mine]
                if held:
                    groups.append({**group, "params": held, "lr": rate})
        made: Optimizer = create_optimizer_v2(groups, "adamw", lr=self.lr)
        return made

    def rates(self, optimizer: Optimizer, steps: int) -> CosineLRScheduler:
        """The learning rates over so many steps: a straight rise, then half a cosine."""
        warm = max(1, round(_WARM * steps))
        # Counted from 1, so that the rate is 0 before the first step and after the last one.
        return CosineLRScheduler(optimizer, steps - warm + 2, warmup_t=warm, warmup_prefix=True,
                                 t_in_epochs=False)  # fmt: skip

    def average(self, model: nn.Module) -> ModelEmaV3 | None:
        """The moving average of the weights; it forgets fast while it is young."""
        return ModelEmaV3(model, self.ema, use_warmup=True) if self.ema else None
