"""The training loop, on accelerate: epochs of one model by one recipe, each from its own seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from ..backbones import backbone
from ..schedule import Schedule
from ..surgery import sharing_copy
from .final_tokens import FinalTokens, Watch
from .forms import Form, Hard, form_for
from .losses import label_loss, logit_loss, token_loss
from .recipe import Recipe
from .tally import Tally

#: longest gradient, of all weights together
_LONGEST = 1.0
#: epochs have seeds so far apart that no two trainings share one by chance
_APART = 1_000_003


class Answer(NamedTuple):
    """What a forward in training gives the losses."""

    logits: Tensor
    tokens: FinalTokens
    extra: Tensor


class Student(nn.Module):
    """The model in its method's training form. accelerate wraps this, and leaves the model as our
    surgery knows it."""

    def __init__(self, model: nn.Module, form: Form) -> None:
        super().__init__()
        self.model, self.form, self.watch = model, form, Watch(model)

    def forward(self, images: Tensor) -> Answer:
        with self.watch.looking() as seen:
            logits: Tensor = self.model(images)
        tokens, kept = seen[-1], self.form.kept(self.model)
        if kept is not None:
            tokens = tokens._replace(weight=kept.detach())
        return Answer(logits, tokens, self.form.extra_loss(self.model))


class Trainer:
    """One model in training. `steps` is how many batches an epoch has, `new` what is new beside
    the method's own: a head."""

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
        set_seed(seed)  # what is new begins by chance
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
        advance: Callable[[Tally], None] = lambda tally: None,
    ) -> Tally:
        """One epoch, counted from 0. What is drawn by chance depends on its number alone."""
        set_seed((self.seed + _APART * (number + 1)) % 2**32, device_specific=True)
        self.student.train()
        tally = Tally()
        for step, (images, labels) in enumerate(batches):
            self.rates.step_update(number * self.steps + step + 1)
            self._step(images, labels, number * self.steps + step, tally)
            advance(tally)
        if not math.isfinite(tally.loss):
            raise ValueError(
                f"the loss is no longer finite in epoch {number + 1}: try a smaller --lr, or "
                "--precision float32"
            )
        return tally

    def _step(self, images: Tensor, labels: Tensor, at: int, tally: Tally) -> None:
        device = self.accelerator.device
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        target = labels
        if self.mix is not None and len(images) > 1:
            even = len(images) // 2 * 2
            images, labels = images[:even].clone(), labels[:even]
            images, target = self.mix(images, labels)
        taught = self._teach(images)
        answer = self.student(images)
        loss = self._loss(answer, target, taught)
        self.accelerator.backward(loss)
        learning = (each for each in self.model.parameters() if each.requires_grad)
        self.accelerator.clip_grad_norm_(learning, _LONGEST)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model, at + 1)
        tally.add(loss, answer.logits, labels)

    def _teach(self, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """What the teacher says of the images: classes and tokens."""
        if self.teacher is None or self._teaching is None:
            return None
        with torch.no_grad(), self.accelerator.autocast(), self._teaching.looking() as seen:
            return self.teacher(images), seen[-1].x

    def _loss(self, answer: Answer, target: Tensor, taught: tuple[Tensor, Tensor] | None) -> Tensor:
        recipe = self.recipe
        loss = label_loss(answer.logits, target, recipe.label_smoothing) + answer.extra
        if taught is not None:
            logits, tokens = taught
            if recipe.logit_weight:
                loss = loss + recipe.logit_weight * logit_loss(answer.logits, logits)
            if recipe.token_weight:
                loss = loss + recipe.token_weight * token_loss(answer.tokens, tokens)
        return loss

    def trained(self) -> nn.Module:
        """The model as it is used, hard-pruned and in eval mode; it shares the weights."""
        held = self.model if self.average is None else self.average.module
        model = sharing_copy(held)
        self.form.take_off(model, self.schedule)
        return model.eval()

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        scaler = self.accelerator.scaler
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.module.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Be as it was when `state` told of it."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.module.load_state_dict(state["average"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])


def _freeze(model: nn.Module, new: list[nn.Parameter]) -> None:
    """Let nothing learn but what is new; where nothing is, the head."""
    learning = new or backbone(model).head_parameters()
    if not learning:
        raise ValueError("nothing is new in this model, and it has no head: leave --frozen out")
    model.requires_grad_(False)
    for each in learning:
        each.requires_grad_(True)
