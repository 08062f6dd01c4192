"""One fine-tuning, from its beginning or from where it was stopped, to the end of its epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from ..backbones import backbone
from .checkpoint import Checkpoint
from .images import Feed
from .tally import Tally, top1
from .training import Trainer

#: what is validated on: its batches, as often as they are asked for
Validation = Callable[[], Iterable[tuple[Tensor, ...]]]


@dataclass
class Session:
    """A trainer, what it is fed, and the file in which every epoch is kept."""

    trainer: Trainer
    feed: Feed
    validation: Validation
    file: Path

    def measure(self, model: nn.Module) -> float:
        """Top-1 on the images to validate on."""
        return top1(model, self.validation(), self.trainer.accelerator)

    def _resume(self, held: Checkpoint) -> None:
        """Go on from there. A file that was spoiled is as likely as one that is a stranger's."""
        odd = ValueError(f"{self.file} does not fit this training: remove it to begin anew")
        if held.epochs > self.trainer.recipe.epochs:
            raise odd
        try:
            self.trainer.resume(held.state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            raise odd from None
        if not all(each.isfinite().all() for each in self.trainer.model.parameters()):
            raise odd

    def run(
        self,
        held: Checkpoint,
        advance: Callable[[int, Tally], None] = lambda epoch, tally: None,
        tell: Callable[[dict[str, float]], None] = lambda row: None,
    ) -> None:
        """The epochs that are left; `held` has the history of all of them in the end."""
        trainer = self.trainer
        if held.epochs:
            self._resume(held)
        for number in range(held.epochs, trainer.recipe.epochs):
            started = time.perf_counter()
            tally = trainer.epoch(number, self.feed.epoch(number), partial(advance, number))
            seconds = time.perf_counter() - started
            row = {
                "epoch": number + 1,
                "loss": tally.loss,
                "train_top1": tally.top1,
                "top1": self.measure(trainer.trained()),
                "seconds": seconds,
            }
            held.history.append(row)
            held.state = trainer.state()
            if trainer.accelerator.is_main_process:
                held.save(self.file)
            tell(row)


def check_teacher(student: nn.Module, teacher: nn.Module, tokens: bool) -> None:
    """Refuse a teacher that speaks of other classes; or, where its tokens are to be matched, of
    others than the student has."""
    own, other = backbone(student), backbone(teacher)
    wanted = [
        ("classes", own.outputs, other.outputs, ""),
        ("pixels", own.input_shape[1], other.input_shape[1], ""),
    ]
    if tokens:
        hint = ": --token-weight 0 leaves the tokens out"
        wanted.append(("channels", own.geometry.dim, other.geometry.dim, hint))
        wanted.append(("patches", own.geometry.patches, other.geometry.patches, hint))
    for what, ours, theirs, hint in wanted:
        if ours != theirs:
            raise ValueError(f"the teacher has {theirs} {what}, the model {ours}{hint}")
