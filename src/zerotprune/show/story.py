"""Follow an image through a pruned model: what became of each patch, and of the prediction.

For Zero-TPrune also what each head votes for at a stage, its variance, and whether VHF counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from ..backbones import backbone
from ..method import Method, Seen
from ..methods import ZeroTPrune
from ..pruning import prune_, restore_
from ..safety.files import printable
from ..schedule import Schedule, Stage
from ..scoring.graph import Graph, HeadRule, Over, head_variance, heads_in_range
from ..scoring.indexing import concat
from ..scoring.scorer import Scorer
from ..shapes import Bool, Float, Int, Shaped
from ..surgery import pruned_blocks, sharing_copy
from ..tokens import Reduction
from ..tracing import Fate, StageTrace, trace

TOP = 5  # predictions of an image
DROPPED, GONE = -1, -2  # in place of a token: dropped by this stage, by an earlier one


class Mark(str, Enum):
    """How a drawing marks a patch. The values are also class names in SVG and HTML."""

    __str__ = str.__str__  # Python 3.10 has no StrEnum

    KEPT = "kept"
    MERGED = "merged"  # into one token with others, at this stage or before
    SIMILAR = "similar"  # dropped by this stage because it resembles another
    UNIMPORTANT = "unimportant"  # dropped by this stage
    GONE = "gone"  # dropped before


MARKS = {
    Mark.KEPT: "kept",
    Mark.MERGED: "merged: the patches of one token share color and outline",
    Mark.SIMILAR: "dropped: similar to another",
    Mark.UNIMPORTANT: "dropped: unimportant",
    Mark.GONE: "dropped before",
}


@dataclass(frozen=True)
class Prediction:
    """A class and its probability."""

    label: str
    share: float  # softmax of the logits


@dataclass(frozen=True)
class StageView:
    """What one stage did to one image, on its grid of patches."""

    block: int
    fate: Int[Tensor, "rows cols"]  # values of `Fate`
    partner: Int[Tensor, "rows cols"]  # of a SIMILAR patch, as an index into the flat grid; else −1
    importance: Float[Tensor, "rows cols"]  # NaN where the stage saw no patch
    # For a method that merges: the token of each patch, as `follow_tokens` names it,
    token: Int[Tensor, "rows cols"] | None = None
    tint: Float[Tensor, "rows cols 3"] | None = None  # and the mean color of that token's patches

    @property
    def kept(self) -> int:
        return self.count(Fate.KEPT)

    def count(self, fate: Fate) -> int:
        return int((self.fate == fate).sum())

    def marked(self, mark: Mark) -> Bool[Tensor, "rows cols"]:
        """Select the patches with this mark. Every patch has exactly one."""
        if self.token is None:
            return self.fate == (-1 if mark == Mark.MERGED else Fate[mark.name])
        shared = find_shared(self.token)
        if mark in (Mark.KEPT, Mark.MERGED):
            return (self.token >= 0) & (shared == (mark == Mark.MERGED))
        if mark == Mark.SIMILAR:  # similar patches are merged, not dropped
            return torch.zeros_like(shared)
        return self.token == (GONE if mark == Mark.GONE else DROPPED)

    def pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """List (column, row) of each similar patch and of the partner that made it redundant."""
        cols = self.partner.shape[1]
        return [
            ((patch % cols, patch // cols), (partner % cols, partner // cols))
            for patch, partner in enumerate(self.partner.flatten().tolist())
            if partner >= 0
        ]


@dataclass(frozen=True)
class HeadsView:
    """The votes of one block's heads on one image."""

    block: int
    vhf: tuple[float, float] | None  # the range of variances that count; None without a filter
    importance: Float[Tensor, "heads rows cols"]  # 1 is the mean; NaN where there was no patch
    variance: tuple[float, ...]
    used: tuple[bool, ...]

    @property
    def none_in_range(self) -> bool:
        """Whether no head is in the range; then all of them count."""
        if self.vhf is None:
            return False
        low, high = self.vhf
        return not any(low <= variance <= high for variance in self.variance)


class Moment(NamedTuple):
    """The image before the first stage (`stage` is None), or after a stage."""

    title: str
    kept: int
    stage: StageView | None = None


@dataclass(frozen=True)
class Story:
    """One image: its stages, and the predictions of the unpruned and of the pruned model."""

    grid: tuple[int, int]  # rows, columns
    stages: list[StageView]
    before: list[Prediction]  # most likely first; empty for a model without a head
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
        """Say how much is left after a stage: tokens for a method that merges, else patches."""
        return f"{kept} of {self.patches} {'tokens' if self.merges else 'kept'}"

    def moments(self, limit: int | None = None) -> list[Moment]:
        """List the image and every stage; or `limit` of them, evenly spread up to the last."""
        stages = [Moment(f"after block {stage.block}", stage.kept, stage) for stage in self.stages]
        moments = [Moment("image", self.patches), *stages]
        last = len(moments) - 1
        if limit is None or limit > last:
            return moments
        return [moments[round(last * number / (limit - 1))] for number in range(limit)]

    def outcome(self) -> StageView:
        """Combine all stages in one view: every dropped patch with the reason why."""
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
    """Run the model unpruned and pruned, and follow every patch.

    The model itself is not changed: a copy that shares its weights is pruned.

    Args:
        model: The unpruned model, or a pruned one.
        images: A batch that has been through the model's transform.
        schedule: What to prune.
        heads: Record the scores of every head too (Zero-TPrune only).
        names: Class names; None for the model's own.

    Returns:
        A story for each image.
    """
    copy, recorder = restore_(sharing_copy(model)), None
    logits = copy(images)
    if heads:
        recorder = RecordingZeroTPrune.of(schedule.method)
        schedule = schedule.by(recorder)
    prune_(copy, schedule, backend="reference" if heads else "auto")
    traces, pruned_logits = _run_traced(copy, images)
    vit = backbone(model)
    grid, labels = vit.geometry.grid, vit.class_names() if names is None else names
    views = _stage_views(traces, schedule.method.merges, images, grid, model)

    def predictions(row: Tensor) -> list[Prediction]:
        return top_predictions(row, labels) if vit.outputs else []

    return [
        Story(
            grid,
            views[index],
            predictions(logits[index]),
            predictions(pruned_logits[index]),
            None if recorder is None else recorder.views(index, grid),
            schedule.method.merges,
        )
        for index in range(len(images))
    ]


def _run_traced(model: nn.Module, images: Tensor) -> tuple[list[StageTrace], Tensor]:
    """Return the trace and the outputs of one run."""
    outputs: list[Tensor] = []

    def record(_: nn.Module, __: Any, out: Tensor) -> None:
        outputs.append(out)

    tasks = [block.task for block in pruned_blocks(model)]
    if all(task.stage is None or task.last for task in tasks):
        return [], model(images)
    hook = model.register_forward_hook(record)
    try:
        stages = trace(model, images)
    finally:
        hook.remove()
    return stages, outputs[0]


def _stage_views(
    traces: Sequence[StageTrace],
    merges: bool,
    images: Tensor,
    grid: tuple[int, int],
    model: nn.Module,
) -> list[list[StageView]]:
    """Split the traces by image; for a method that merges, add tokens and their colors."""
    views = [[stage_view(stage, index, grid) for stage in traces] for index in range(len(images))]
    if not merges:
        return views
    tokens = [token.reshape(-1, *grid).cpu() for token in follow_tokens(traces)]
    for index, image in enumerate(images):
        colors = patch_colors(image, grid, model)
        views[index] = [
            replace(view, token=token[index], tint=blend_colors(colors, token[index]))
            for view, token in zip(views[index], tokens, strict=True)
        ]
    return views


def stage_view(stage: StageTrace, index: int, grid: tuple[int, int]) -> StageView:
    """Return what a stage did to image `index` of the batch."""
    return StageView(
        stage.block,
        stage.fate[index].reshape(grid).cpu(),
        stage.partner[index].reshape(grid).cpu(),
        stage.importance[index].reshape(grid).float().cpu(),
    )


def top_predictions(logits: Float[Tensor, " classes"], names: Sequence[str]) -> list[Prediction]:
    """Return the most likely classes."""
    shares, classes = logits.float().softmax(dim=-1).topk(min(TOP, len(logits)))
    return [
        Prediction(printable(names[number]) if number < len(names) else f"class {number}", share)
        for number, share in zip(classes.tolist(), shares.tolist(), strict=True)
    ]


def name_marks(views: Sequence[StageView]) -> dict[Mark, str]:
    """Describe the marks that occur in the views."""
    return {
        mark: text for mark, text in MARKS.items() if any(view.marked(mark).any() for view in views)
    }


def follow_tokens(stages: Sequence[StageTrace]) -> list[Int[Tensor, "batch patches"]]:
    """Find the token of every patch after each stage of a method that merges.

    A token is named by the patch where it stands. It takes along all patches merged into it
    before. A patch is DROPPED at the stage that drops its token, and GONE later.
    """
    tokens: list[Tensor] = []
    for stage in stages:
        places = torch.arange(stage.fate.shape[1], device=stage.fate.device).expand_as(stage.fate)
        target = torch.where(stage.partner >= 0, stage.partner, places)
        target = target.masked_fill(stage.fate == Fate.UNIMPORTANT, DROPPED)
        before = tokens[-1] if tokens else places
        tokens.append(torch.where(before < 0, GONE, target.gather(1, before.clamp(min=0))))
    return tokens


def find_shared(token: Int[Tensor, "rows cols"]) -> Bool[Tensor, "rows cols"]:
    """Select the patches whose token has other patches too.

    >>> find_shared(torch.tensor([[0, 0, 2], [-1, -1, 5]]))
    tensor([[ True,  True, False],
            [False, False, False]])
    """
    flat = token.flatten()
    alive = flat >= 0
    sizes = torch.bincount(flat[alive], minlength=flat.numel())
    return (alive & (sizes[flat.clamp(min=0)] > 1)).reshape(token.shape)


def find_borders(
    token: Int[Tensor, "rows cols"],
) -> tuple[Bool[Tensor, "rows cols-1"], Bool[Tensor, "rows-1 cols"]]:
    """Select the borders of merged patches: between neighbors in a row, and in a column.

    A single patch has no border of its own: an outline would only hide it.
    """
    shared = find_shared(token)
    in_row = (token[:, 1:] != token[:, :-1]) & (shared[:, 1:] | shared[:, :-1])
    in_column = (token[1:] != token[:-1]) & (shared[1:] | shared[:-1])
    return in_row, in_column


def undo_normalization(
    values: Float[Tensor, "3 height width"], model: nn.Module | None
) -> Float[Tensor, "3 height width"]:
    """Return the pixels that the model saw, from 0 to 1. Without a model, values are in [-1, 1]."""
    normalization = ((0.5,) * 3, (0.5,) * 3) if model is None else backbone(model).normalization
    mean, std = torch.tensor(normalization, dtype=torch.float32)[..., None, None]
    pixels: Tensor = values.detach().float().cpu() * std + mean
    return pixels.clamp(0, 1)


def patch_colors(
    values: Float[Tensor, "3 height width"], grid: tuple[int, int], model: nn.Module | None = None
) -> Float[Tensor, "rows cols 3"]:
    """Return the mean color of each patch that the model saw, from 0 to 1."""
    pooled: Tensor = adaptive_avg_pool2d(undo_normalization(values, model), grid)
    return pooled.permute(1, 2, 0)


def blend_colors(
    colors: Float[Tensor, "rows cols 3"], token: Int[Tensor, "rows cols"]
) -> Float[Tensor, "rows cols 3"]:
    """Average the colors of each token's patches; single and dropped patches keep theirs."""
    flat, names = colors.reshape(-1, 3), token.flatten()
    places = torch.arange(len(names), device=names.device)
    group = torch.where(names < 0, places, names)  # no token stands at a dropped patch
    total = torch.zeros_like(flat).index_add(0, group, flat)
    count = torch.bincount(group, minlength=len(names))[:, None]
    return (total / count.clamp(min=1))[group].reshape(colors.shape)


class _Vote(NamedTuple):
    """One vote on a batch of images."""

    final: bool  # the I-stage's, not I′
    source: Int[Tensor, "batch patches"]
    score: Float[Tensor, "batch heads patches"]  # scaled to mean 1, NaN for dead tokens
    variance: Float[Tensor, "batch heads"]
    used: Bool[Tensor, "batch heads"]


class _Recorder(Scorer):
    """Keep the scores of every head in the last vote."""

    def __init__(self) -> None:
        self.last: tuple[Tensor, Tensor, Tensor] | None = None

    def importance(
        self,
        graph: Graph,
        scores: Float[Tensor, "batch heads tokens"],
        prefix: int,
        rule: HeadRule = "eir",
        variances: tuple[float, float] | None = None,
        over: Over = "patches",
    ) -> Float[Tensor, "batch patches"]:
        variance = head_variance(scores, prefix if over == "patches" else 0, graph.alive)
        used = torch.ones_like(variance, dtype=torch.bool)
        if variances is not None:
            used = heads_in_range(variance, *variances)
        patches = scores[..., prefix:]
        if graph.alive is not None:
            patches = patches.masked_fill(graph.alive[:, None, prefix:] == 0, torch.nan)
        relative = patches / patches.nanmean(dim=-1, keepdim=True)
        self.last = (relative, variance, used)
        return super().importance(graph, scores, prefix, rule, variances, over)


@dataclass(frozen=True)
class RecordingZeroTPrune(ZeroTPrune):
    """Zero-TPrune, with a record of the votes of its heads."""

    votes: dict[int, list[_Vote]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, method: Method) -> RecordingZeroTPrune:
        check_heads(method)
        return cls(**{option.name: getattr(method, option.name) for option in fields(ZeroTPrune)})

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        recorder = _Recorder()
        reduction = super().reduce(seen._replace(scorer=recorder), stage)
        if recorder.last is not None:
            vote = _Vote(reduction.importance is not None, seen.tokens.source, *recorder.last)
            self.votes.setdefault(stage.block, []).append(vote)
        return reduction

    def views(self, index: int, grid: tuple[int, int]) -> list[HeadsView]:
        """Return the heads of every stage that voted, for image `index` of the batch."""
        views = []
        for block, votes in sorted(self.votes.items()):
            vote = concat(votes)  # a CPU scores a few images at a time
            source, score = vote.source[index].cpu(), vote.score[index].float().cpu()
            flat = torch.full((len(score), grid[0] * grid[1]), torch.nan)
            flat.scatter_(1, source.expand(len(score), -1), score)
            vhf, maps = self.vhf if vote.final else None, flat.unflatten(1, grid)
            variance, used = vote.variance[index].tolist(), vote.used[index].tolist()
            views.append(HeadsView(block, vhf, maps, tuple(variance), tuple(used)))
        return views


def check_heads(method: Method) -> None:
    """Raise ValueError for a method that does not score head by head."""
    if not isinstance(method, ZeroTPrune):
        raise ValueError(
            f"{type(method).__name__} has no scores for each head: --heads needs Zero-TPrune"
        )
