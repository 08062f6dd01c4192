"""An image's story: what became of its patches, and what the model said before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..files import printable
from ..pruning import prune_, restore_
from ..schedule import Schedule
from ..shapes import Bool, Float, Int, Shaped
from ..surgery import pruned_blocks, sharing_copy
from ..tracing import Fate, StageTrace, trace
from .groups import DROPPED, GONE, blend_colours, find_shared, follow_tokens
from .heads import HeadsView, RecordingZeroTPrune
from .palette import Mark
from .pixels import patch_colours

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
    # Of a method that merges: the token that holds each patch, as `follow_tokens` names it;
    token: Int[Tensor, "rows cols"] | None = None
    tint: Float[Tensor, "rows cols 3"] | None = None  # and the mean colour of that token's patches

    @property
    def kept(self) -> int:
        return self.count(Fate.KEPT)

    def marked(self, mark: Mark) -> Bool[Tensor, "rows cols"]:
        """The patches that a drawing marks so. Each patch has one mark."""
        if self.token is None:
            return self.fate == (-1 if mark == Mark.MERGED else Fate[mark.name])
        shared = find_shared(self.token)
        if mark in (Mark.KEPT, Mark.MERGED):
            return (self.token >= 0) & (shared == (mark == Mark.MERGED))
        if mark == Mark.SIMILAR:  # what is like another is merged with it
            return torch.zeros_like(shared)
        return self.token == (GONE if mark == Mark.GONE else DROPPED)

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

    def count_left(self, kept: int) -> str:
        """How much is left after a stage, in words: of what is merged, nothing is gone."""
        return f"{kept} of {self.patches} {'tokens' if self.merges else 'kept'}"

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
        if not self.stages:
            return StageView(0, fate, partner, importance)
        last = self.stages[-1]
        token = None if last.token is None else last.token.clamp(min=DROPPED)
        return replace(last, fate=fate, partner=partner, importance=importance, token=token)


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
    views = _stage_views(stages, schedule.method.merges, images, grid, model)

    def predictions(given: Tensor) -> list[Prediction]:
        return top_predictions(given, labels) if apart.outputs else []

    return [
        Story(
            grid,
            views[at],
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


def _stage_views(
    stages: Sequence[StageTrace],
    merges: bool,
    images: Tensor,
    grid: tuple[int, int],
    model: nn.Module,
) -> list[list[StageView]]:
    """What the stages made of each image; where patches are merged, with their groups."""
    views = [[stage_view(stage, at, grid) for stage in stages] for at in range(len(images))]
    if not merges:
        return views
    tokens = [token.reshape(-1, *grid).cpu() for token in follow_tokens(stages)]
    for at, image in enumerate(images):
        colours = patch_colours(image, grid, model)
        views[at] = [
            replace(view, token=token[at], tint=blend_colours(colours, token[at]))
            for view, token in zip(views[at], tokens, strict=True)
        ]
    return views


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
        Prediction(printable(names[number]) if number < len(names) else f"class {number}", share)
        for number, share in zip(classes.tolist(), shares.tolist(), strict=True)
    ]


MARKS = {
    Mark.KEPT: "kept",
    Mark.MERGED: "merged: the patches of one token share colour and outline",
    Mark.SIMILAR: "dropped: similar to another",
    Mark.UNIMPORTANT: "dropped: unimportant",
    Mark.GONE: "dropped before",
}


def name_marks(views: Sequence[StageView]) -> dict[Mark, str]:
    """What the marks mean that occur."""
    return {mark: text for mark, text in MARKS.items() if any(v.marked(mark).any() for v in views)}
