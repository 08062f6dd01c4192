"""An image's story: what became of its patches, and what the model said before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..measure.modes import sharing_copy
from ..pruning import prune_, restore_
from ..schedule import Schedule
from ..shapes import Float, Int, Shaped
from ..surgery import pruned_blocks
from ..tracing import Fate, StageTrace, trace
from .heads import HeadsView, RecordingZeroTPrune

TOP = 5


@dataclass(frozen=True)
class Prediction:
    """One class that the model thinks of, and how much of its belief it gives to it."""

    label: str
    share: float  # softmax of the logits


@dataclass(frozen=True)
class StageView:
    """What one stage made of one image, on the grid of its patches."""

    block: int
    fate: Int[Tensor, "rows cols"]  # values of `Fate`
    partner: Int[Tensor, "rows cols"]  # of a SIMILAR patch, as an index into the flat grid; else −1
    importance: Float[Tensor, "rows cols"]  # NaN where the stage saw no patch

    @property
    def kept(self) -> int:
        return self.count(Fate.KEPT)

    def count(self, fate: Fate) -> int:
        return int((self.fate == fate).sum())

    def pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """(column, row) of each similar patch, and of the partner that made it redundant."""
        cols = self.partner.shape[1]
        return [
            ((patch % cols, patch // cols), (partner % cols, partner // cols))
            for patch, partner in enumerate(self.partner.flatten().tolist())
            if partner >= 0
        ]


class Moment(NamedTuple):
    """An image as it comes, or after a stage."""

    title: str
    kept: int
    stage: StageView | None = None


@dataclass(frozen=True)
class Story:
    """One image."""

    grid: tuple[int, int]  # rows, columns
    stages: list[StageView]
    before: list[Prediction]  # the likeliest first; none of a model without a head
    after: list[Prediction]
    heads: list[HeadsView] | None = None
    merges: bool = False  # are similar patches merged with their partners, not dropped?

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def same_answer(self) -> bool:
        return self.before[0].label == self.after[0].label

    def moments(self) -> list[Moment]:
        """What a strip shows, a film one after the other, and a slider one at a time."""
        after = [Moment(f"after block {stage.block}", stage.kept, stage) for stage in self.stages]
        return [Moment("image", self.patches), *after]

    def outcome(self) -> StageView:
        """All stages in one view: every dropped patch with the reason why it went."""
        fate = torch.full(self.grid, Fate.KEPT)
        partner, importance = torch.full_like(fate, -1), torch.full(self.grid, torch.nan)
        for stage in self.stages:
            fate = torch.where(stage.fate == Fate.GONE, fate, stage.fate)
            partner = torch.where(stage.partner >= 0, stage.partner, partner)
            importance = stage.importance
        block = self.stages[-1].block if self.stages else 0
        return StageView(block, fate, partner, importance)


@torch.inference_mode()
def tell(
    model: nn.Module,
    images: Shaped[Tensor, "batch 3 height width"],
    schedule: Schedule,
    *,
    heads: bool = False,
    names: Sequence[str] | None = None,
) -> list[Story]:
    """The story of each image of a batch that has been through the model's transform.

    `names` are those of the classes, if not the model's own; `heads` tells the scores of every
    head too. The model is left alone: a copy of it is pruned, which shares its weights.
    """
    copy, notes = restore_(sharing_copy(model)), None
    logits = copy(images)
    if heads:
        notes = RecordingZeroTPrune.of(schedule.method)
        schedule = schedule.by(notes)
    prune_(copy, schedule, backend="reference" if heads else "auto")
    stages, pruned = _run_traced(copy, images)
    apart = backbone(model)
    grid, labels = apart.geometry.grid, apart.class_names() if names is None else names

    def predictions(given: Tensor) -> list[Prediction]:
        return top_predictions(given, labels) if apart.outputs else []

    return [
        Story(
            grid,
            [stage_view(stage, at, grid) for stage in stages],
            predictions(logits[at]),
            predictions(pruned[at]),
            None if notes is None else notes.views(at, grid),
            schedule.method.merges,
        )
        for at in range(len(images))
    ]


def _run_traced(model: nn.Module, images: Tensor) -> tuple[list[StageTrace], Tensor]:
    """The trace and the outputs of one and the same run."""
    outputs: list[Tensor] = []

    def note(_: nn.Module, __: Any, out: Tensor) -> None:
        outputs.append(out)

    if all(task.stage is None or task.last for _, task, _ in pruned_blocks(model)):
        return [], model(images)
    hook = model.register_forward_hook(note)
    try:
        stages = trace(model, images)
    finally:
        hook.remove()
    return stages, outputs[0]


def stage_view(stage: StageTrace, at: int, grid: tuple[int, int]) -> StageView:
    """What a stage made of image `at` of the batch."""
    return StageView(
        stage.block,
        stage.fate[at].reshape(grid).cpu(),
        stage.partner[at].reshape(grid).cpu(),
        stage.importance[at].reshape(grid).float().cpu(),
    )


def top_predictions(logits: Float[Tensor, " classes"], names: Sequence[str]) -> list[Prediction]:
    """The likeliest classes."""
    shares, classes = logits.float().softmax(dim=-1).topk(min(TOP, len(logits)))
    return [
        Prediction(names[number] if number < len(names) else f"class {number}", share)
        for number, share in zip(classes.tolist(), shares.tolist(), strict=True)
    ]


def name_fates(stories: Sequence[Story]) -> dict[Fate, str]:
    """What the colours mean: methods side by side may differ in what becomes of similar patches."""
    merging = {story.merges for story in stories}
    similar = "merged with a similar one" if merging == {True} else "dropped: similar to another"
    return {
        Fate.SIMILAR: "dropped as similar, or merged" if len(merging) == 2 else similar,
        Fate.UNIMPORTANT: "dropped: unimportant",
        Fate.GONE: "dropped before",
    }
