"""Measure how many rounds of votes every block needs, on the unpruned model.

All divergences are KL(importance after 50 rounds ‖ the other), in nats: the loss from using the
other in place of the settled importance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..backbones import BlockCall, backbone
from ..block import CHUNK, Parts
from ..measure.accuracy import Mean, divergence
from ..schedule import papers_rounds
from ..scoring.graph import attention_graph, combine_heads, head_variance, start_scores, vote
from ..scoring.indexing import concat, select
from ..shapes import Batch, Float
from ..surgery import current_plan
from ..tokens import Tokens

ROUNDS = (1, 5, 10, 30, 50)
SETTLED = ROUNDS[-1]
#: Bins for scores as multiples of their mean. The outermost also count what lies beyond.
EDGES = torch.logspace(-2, 2, 41)
#: A block has voted enough when its mean divergence from the settled importance is below this share
#: of its spread, the divergence of the settled importance from a flat one. It is a share because
#: only the ranking counts, and in a flat block small differences decide it. Where scores differ
#: little from their mean, both divergences are half a variance, and their ratio is the share of the
#: scores' variance that is not there yet: 0.01 is a correlation of 0.995 with the settled scores.
THRESHOLD = 0.01
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class BlockSurvey(NamedTuple):
    """Measurements of one block, on some images or on all."""

    divergence: Float[Tensor, "images rounds"]  # for all of ROUNDS, so 0 for the last
    spread: Float[Tensor, " images"]  # divergence from a flat importance
    variance: Float[Tensor, "images rounds heads"]  # of scores scaled to mean 1
    counts: Float[Tensor, "chunks rounds bins"]  # patch tokens per bin, for a few images at a time


def survey(
    model: nn.Module,
    batches: Iterable[Batch],
    device: str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
) -> list[BlockSurvey]:
    """Run the unpruned model on the images and measure the graph of every block.

    Forward hooks are added and removed again.
    """
    if current_plan(model) is not None:
        raise ValueError("the model is pruned: call restore_(model) before calibrating it")
    vit = backbone(model)
    prefix, cls = vit.geometry.prefix, vit.geometry.cls
    parts: list[list[BlockSurvey]] = [[] for _ in vit.blocks]
    hooks = [
        block.register_forward_pre_hook(
            _watch(vit.parts(block), vit.call, prefix, cls, notes), with_kwargs=True
        )
        for block, notes in zip(vit.blocks, parts, strict=True)
    ]
    try:
        with torch.inference_mode():
            for images, _, _ in batches:
                model(images.to(device))
                advance(len(images))
    finally:
        for hook in hooks:
            hook.remove()
    if not parts[0]:
        raise ValueError("no images to survey")
    blocks = [concat(notes) for notes in parts]
    for number, block in enumerate(blocks, start=1):
        if not all(values.isfinite().all() for values in block):
            raise ValueError(f"the scores of block {number} are not finite")
    return blocks


def _watch(
    parts: Parts, call: BlockCall, prefix: int, cls: bool, notes: list[BlockSurvey]
) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, others = call.read(args, kwargs)
        tokens = Tokens.of(x, prefix)
        for start in range(0, len(tokens.x), CHUNK):  # graphs are large: few images at a time
            heads = parts.attend(select(tokens, slice(start, start + CHUNK)), others)
            graphs = [attention_graph(part.q, part.k, part.scale, part.bias) for part in heads]
            notes.append(look_at(torch.cat(graphs, dim=1), prefix, cls))

    return look


def look_at(
    graph: Float[Tensor, "images heads tokens tokens"], prefix: int, cls: bool
) -> BlockSurvey:
    """Measure one block by its graphs, with the method's start and heads combined by EIR."""
    score = start_scores(graph, math.sqrt(graph.shape[-1]) if cls else None)
    importance, variance, before = [], [], 0
    for rounds in ROUNDS:
        score, before = vote(graph, score, rounds - before), rounds
        importance.append(combine_heads(score)[:, prefix:])
        variance.append(head_variance(score, prefix))
    # Late divergences are too small for float32.
    shares = torch.stack(importance, dim=1).double()
    shares = shares / shares.sum(dim=-1, keepdim=True)
    settled, count = shares[:, -1:], shares.shape[-1]
    flat = torch.full_like(settled[:, 0], 1 / count)
    return BlockSurvey(
        divergence=divergence(_log(settled), _log(shares)).cpu(),
        spread=divergence(_log(settled[:, 0]), _log(flat)).cpu(),
        variance=torch.stack(variance, dim=1).cpu(),
        counts=_counts(shares.float().cpu() * count),
    )


def _log(shares: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()


def _counts(relative: Float[Tensor, "images rounds patches"]) -> Float[Tensor, "1 rounds bins"]:
    bins = len(EDGES) - 1
    place = (torch.bucketize(relative, EDGES) - 1).clamp(0, bins - 1)
    counts = torch.zeros(*relative.shape[:-1], bins)
    return counts.scatter_add_(-1, place, torch.ones_like(relative)).sum(dim=0, keepdim=True)


@dataclass(frozen=True)
class BlockRounds:
    """One block's row of the table."""

    block: int
    divergence: tuple[Mean, ...]  # after each of ROUNDS but the last
    spread: Mean
    needed: int
    paper: tuple[int, int]

    @property
    def verdict(self) -> str:
        """Whether the paper's choice holds for this block."""
        if self.needed < self.paper[0]:
            return "too many"
        return "holds" if self.needed <= self.paper[1] else "too few"

    def to_json(self) -> dict[str, Any]:
        after = zip(ROUNDS, self.divergence, strict=False)
        return {
            "block": self.block,
            "kl": {str(rounds): kl.to_json() for rounds, kl in after},
            "spread": self.spread.to_json(),
            "needed": self.needed,
            "paper": list(self.paper),
            "verdict": self.verdict,
        }


def rounds_needed(blocks: Sequence[BlockSurvey], threshold: float) -> list[BlockRounds]:
    """Find for each block the fewest of ROUNDS whose mean divergence is within the threshold."""
    rows = []
    for number, block in enumerate(blocks, start=1):
        means = tuple(Mean.of(column) for column in block.divergence.T[:-1])
        spread = Mean.of(block.spread)
        limit = threshold * spread.value
        enough = (count for count, kl in zip(ROUNDS, means, strict=False) if kl.value <= limit)
        paper = papers_rounds(number, len(blocks))
        rows.append(BlockRounds(number, means, spread, next(enough, SETTLED), paper))
    return rows


def divergences_json(rows: Sequence[BlockRounds], threshold: float) -> dict[str, Any]:
    return {
        "means": "KL(importance after 50 rounds ‖ after r rounds), nats: mean, its error",
        "threshold": threshold,
        "blocks": [row.to_json() for row in rows],
    }


def head_variances(
    blocks: Sequence[BlockSurvey], rows: Sequence[BlockRounds]
) -> list[Float[Tensor, "images heads"]]:
    """Return the variances of the heads' scores after the rounds that a block needs."""
    return [
        block.variance[:, ROUNDS.index(row.needed)] for block, row in zip(blocks, rows, strict=True)
    ]


def variances_json(variances: Sequence[Float[Tensor, "images heads"]]) -> dict[str, Any]:
    """Return quantiles over the images for every block and head."""
    points = torch.tensor(QUANTILES, dtype=torch.float64)
    exact = [block.double().quantile(points, dim=0).T.tolist() for block in variances]
    blocks = [[[float(f"{value:.4g}") for value in head] for head in block] for block in exact]
    return {"quantiles": list(QUANTILES), "blocks": blocks}
