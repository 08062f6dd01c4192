"""The training loop, on accelerate: one model, one recipe, and a seed for every epoch.

A pruned model learns from labels, and from the logits and tokens of an unpruned teacher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from ..backbones import backbone
from ..schedule import Schedule
from ..shapes import Float, Int, Shaped
from ..surgery import pruned_block, sharing_copy
from ..tokens import Tokens
from .forms import Form, Hard, form_for
from .recipe import Recipe

_MAX_GRAD_NORM = 1.0
#: the step between the seeds of epochs: no two trainings share one by chance
_SEED_STEP = 1_000_003


@dataclass
class EpochStats:
    """Loss and top-1 of an epoch so far. They stay on the device: reading them waits for it."""

    images: int = 0
    _loss: Tensor | float = 0.0
    _hits: Tensor | float = 0.0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.images += len(labels)
        self._loss = self._loss + loss.detach() * len(labels)
        self._hits = self._hits + (logits.argmax(dim=-1) == labels).sum()

    @property
    def loss(self) -> float:
        """Mean over the images."""
        return float(self._loss) / max(1, self.images)

    @property
    def top1(self) -> float:
        """In percent, by the labels before mixing."""
        return 100 * float(self._hits) / max(1, self.images)


class FinalTokens(NamedTuple):
    """The patch tokens that leave the last block."""

    x: Float[Tensor, "batch left width"]
    source: Int[Tensor, "batch left"]  # their places in the original grid
    weight: Float[Tensor, "batch left"]  # how many patches a token stands for; 0: padding


class Watch:
    """Record the tokens that leave the last block of a model, pruned or not.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5).eval()
    >>> watch = Watch(ztp.prune_(model, cost=0.7, compute="all"))
    >>> with watch.looking() as seen:
    ...     logits = model(torch.zeros(1, 3, 160, 160))
    >>> seen[-1].x.shape[1] < 100, float(seen[-1].weight.sum())
    (True, 100.0)
    """

    def __init__(self, model: nn.Module) -> None:
        vit = backbone(model)
        self._last, self._prefix = vit.blocks[-1], vit.geometry.prefix

    @contextmanager
    def looking(self) -> Iterator[list[FinalTokens]]:
        """Record the tokens of every call while the context is open."""
        seen: list[FinalTokens] = []

        def ask(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            # A head that pools has already asked for the tokens.
            return None if pruned_block(block) is None else (args, {"left": [], **kwargs})

        def look(_: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
            left: list[Tokens] | None = kwargs.get("left")
            tokens = left[-1] if left else Tokens.of(out, self._prefix)
            seen.append(self._final(tokens))

        hooks = (
            self._last.register_forward_pre_hook(ask, with_kwargs=True),
            self._last.register_forward_hook(look, with_kwargs=True),
        )
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()

    def _final(self, tokens: Tokens) -> FinalTokens:
        x, weight = tokens.x[:, self._prefix :], tokens.weight()
        counted = torch.ones_like(x[..., 0]) if weight is None else weight[:, self._prefix :]
        return FinalTokens(x, tokens.source, counted)


class StudentOutput(NamedTuple):
    """What the losses need from a forward pass in training."""

    logits: Tensor
    tokens: FinalTokens
    extra: Tensor


class Student(nn.Module):
    """The model in its method's training form. accelerate wraps this and leaves the model alone."""

    def __init__(self, model: nn.Module, form: Form) -> None:
        super().__init__()
        self.model, self.form, self.watch = model, form, Watch(model)

    def forward(self, images: Tensor) -> StudentOutput:
        with self.watch.looking() as seen:
            logits: Tensor = self.model(images)
        tokens, kept = seen[-1], self.form.kept(self.model)
        if kept is not None:
            tokens = tokens._replace(weight=kept.detach())
        return StudentOutput(logits, tokens, self.form.extra_loss(self.model))


class Trainer:
    """One model in training.

    Args:
        model: The model, unpruned.
        schedule: What to prune while it learns.
        recipe: Epochs, rates, augmentation and losses.
        accelerator: Device, precision and processes.
        steps: Batches per epoch.
        teacher: An unpruned model to learn from.
        new: New parameters other than the method's, such as a head.
        frozen: Train only new parameters, or the head if there are none.
        seed: For new parameters and everything drawn in training.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule,
        recipe: Recipe,
        accelerator: Accelerator,
        *,
        steps: int,
        teacher: nn.Module | None = None,
        new: Iterable[nn.Parameter] = (),
        frozen: bool = False,
        seed: int = 0,
    ) -> None:
        self.schedule, self.recipe, self.accelerator = schedule, recipe, accelerator
        self.steps, self.seed, self.model = steps, seed, model.to(accelerator.device)
        self.form = form_for(schedule.method) if schedule.stages else Hard()
        set_seed(seed)  # new parameters are random
        self.form.put_on(self.model, schedule)
        self.model.to(accelerator.device)
        fresh = [*new, *self.form.new_parameters(self.model)]
        if frozen:
            _freeze(self.model, fresh)
        self.mix = recipe.mixer(backbone(self.model).outputs)
        self.average = recipe.average(self.model)
        optimizer = recipe.optimizer(self.model, fresh)
        self.rates = recipe.rates(optimizer, steps * recipe.epochs)
        student = Student(self.model, self.form)
        self.student, self.optimizer = accelerator.prepare(student, optimizer)
        self.teacher = None if teacher is None else teacher.to(accelerator.device).eval()
        self._teaching = None if self.teacher is None else Watch(self.teacher)

    def epoch(
        self,
        number: int,
        batches: Iterable[tuple[Tensor, Tensor]],
        advance: Callable[[EpochStats], None] = lambda stats: None,
    ) -> EpochStats:
        """Train for one epoch, counted from 0. Its random numbers depend on seed and epoch
        alone."""
        set_seed((self.seed + _SEED_STEP * (number + 1)) % 2**32, device_specific=True)
        self.student.train()
        stats = EpochStats()
        for step, (images, labels) in enumerate(batches):
            self.rates.step_update(number * self.steps + step + 1)
            self._step(images, labels, number * self.steps + step, stats)
            advance(stats)
        if not stats.images:
            raise ValueError("none of the images to learn from can be read")
        weights = self.model.parameters()  # the last step may spoil them after a finite loss
        if not math.isfinite(stats.loss) or not all(one.isfinite().all() for one in weights):
            raise ValueError(
                f"loss or weights are no longer finite in epoch {number + 1}: try a smaller --lr, "
                "or --precision float32"
            )
        return stats

    def _step(self, images: Tensor, labels: Tensor, at: int, stats: EpochStats) -> None:
        device = self.accelerator.device
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        target = labels
        if self.mix is not None and len(images) > 1:
            even = len(images) // 2 * 2
            images, labels = images[:even].clone(), labels[:even]
            images, target = self.mix(images, labels)
        taught = self._teach(images)
        output = self.student(images)
        loss = self._loss(output, target, taught)
        self.accelerator.backward(loss)
        trainable = (weight for weight in self.model.parameters() if weight.requires_grad)
        self.accelerator.clip_grad_norm_(trainable, _MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model, at + 1)
        stats.add(loss, output.logits, labels)

    def _teach(self, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the teacher's logits and tokens for the images."""
        if self.teacher is None or self._teaching is None:
            return None
        with torch.no_grad(), self.accelerator.autocast(), self._teaching.looking() as seen:
            return self.teacher(images), seen[-1].x

    def _loss(
        self, output: StudentOutput, target: Tensor, taught: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        recipe = self.recipe
        loss = label_loss(output.logits, target, recipe.label_smoothing) + output.extra
        if taught is not None:
            logits, tokens = taught
            if recipe.logit_weight:
                loss = loss + recipe.logit_weight * logit_loss(output.logits, logits)
            if recipe.token_weight:
                loss = loss + recipe.token_weight * token_loss(output.tokens, tokens)
        return loss

    def trained(self) -> nn.Module:
        """Return the model for inference: hard-pruned, in eval mode, with shared weights."""
        source = self.model if self.average is None else self.average.module
        model = sharing_copy(source)
        self.form.take_off(model, self.schedule)
        return model.eval()

    def state(self) -> dict[str, Any]:
        """Return everything that the next epoch depends on."""
        scaler = self.accelerator.scaler
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.module.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])


def _freeze(model: nn.Module, new: list[nn.Parameter]) -> None:
    """Freeze all but the new parameters, or all but the head if there are none."""
    trainable = new or backbone(model).head_parameters()
    if not trainable:
        raise ValueError("--frozen leaves nothing to train: no new parameters, and no head")
    model.requires_grad_(False)
    for parameter in trainable:
        parameter.requires_grad_(True)


@torch.no_grad()
def top1(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]], accelerator: Accelerator
) -> float:
    """Return top-1 in percent, over the shares of all processes."""
    counts = torch.zeros(2, device=accelerator.device)
    for images, labels, *_ in batches:
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        with accelerator.autocast():
            predicted = model(images).argmax(dim=-1)
        hits = (predicted == labels).sum()
        counts += torch.stack((hits, torch.tensor(len(labels)).to(hits)))
    right, total = accelerator.reduce(counts).tolist()
    if not total:
        raise ValueError("none of the images to validate on can be read")
    return float(100 * right / total)


def label_loss(
    logits: Float[Tensor, "batch classes"], target: Shaped[Tensor, "batch ..."], smoothing: float
) -> Float[Tensor, ""]:
    """Return the cross-entropy with class indices, or with probabilities that mixup smoothed."""
    indices = target.dim() == 1
    return F.cross_entropy(logits.float(), target, label_smoothing=smoothing if indices else 0.0)


def logit_loss(
    logits: Float[Tensor, "batch classes"], taught: Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """Return KL(teacher ‖ student) of the class probabilities, as a mean over images.

    >>> import torch
    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> float(logit_loss(same, same))
    0.0
    """
    student, teacher = (one.float().log_softmax(dim=-1) for one in (logits, taught))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def token_loss(
    tokens: FinalTokens, taught: Float[Tensor, "batch patches width"]
) -> Float[Tensor, ""]:
    """Return the squared distance from every remaining token to the teacher's at its place.

    Both are normalized to mean 0 and variance 1. A token counts once for every patch that it stands
    for. The final norm's scale is left out: training would shrink it.
    """
    place = tokens.source.unsqueeze(-1).expand(-1, -1, taught.shape[-1])
    student, teacher = (_normalize(x) for x in (tokens.x, taught.gather(1, place)))
    distance = (student - teacher).square().mean(dim=-1)
    weight = tokens.weight.to(distance.dtype)
    return (distance * weight).sum() / weight.sum()


def _normalize(x: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:])
