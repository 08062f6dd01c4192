"""The attention graph and the importance of tokens on it: voting, heads, rankings. Pure functions.

Section and equation names follow the paper (Wang, Dedhia, Jha: Zero-TPrune, CVPR 2024).
A graph holds rows that sum to 1; scores are float32 or wider whatever the model's precision.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..shapes import Bool, Float, Int
from .precision import no_autocast, widened

HeadRule = Literal["eir", "mean", "max"]
#: whose scores the variance of a head is taken over
Over = Literal["patches", "all"]


def attention_graph(
    q: Float[Tensor, "batch heads queries width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    bias: Float[Tensor, "*any #queries tokens"] | None = None,
) -> Float[Tensor, "batch heads queries tokens"]:
    """A[h, i, j]: the attention that token i pays to token j in head h (Sec. 3.2)."""
    with no_autocast(q):
        logits = (widened(q) * scale) @ widened(k).transpose(-2, -1)
        if bias is not None:
            logits = logits + bias
        return logits.softmax(dim=-1)


def start_scores(
    like: Float[Tensor, "batch heads tokens *any"],
    cls_weight: float | None = None,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads tokens"]:
    """The first scores: equal for all tokens, or with `cls_weight` times as much for token 0."""
    batch, heads, tokens = like.shape[:3]
    score = like.new_ones(1, 1, tokens)
    if cls_weight is not None:
        score[..., 0] = cls_weight
    if alive is not None:
        score = score * alive.unsqueeze(1)
    return (score / score.sum(dim=-1, keepdim=True)).expand(batch, heads, tokens)


def vote(
    graph: Float[Tensor, "batch heads tokens tokens"],
    score: Float[Tensor, "batch heads tokens"],
    rounds: int,
    alive: Float[Tensor, "batch tokens"] | None = None,
    rescaled: bool = True,
) -> Float[Tensor, "batch heads tokens"]:
    """Weighted PageRank (Alg. 1, Eq. 1): `rounds` times s ← Aᵀs, then s scaled to sum 1 per head.

    With `alive` (1 or 0 for each token) the vote is held on the sub-graph of the living tokens,
    its rows scaled back to sum 1, or not (`rescaled`). The sub-graph is never cut out: a row's
    scale moves from the row to the vote it casts. Voting is linear, so scaling once at the end is
    the same as scaling in each round.
    """
    flat = graph.flatten(0, 1)
    score = score.reshape(flat.shape[0], 1, score.shape[-1])
    if alive is None:
        for _ in range(rounds):
            score = score @ flat
        score = score.reshape(graph.shape[:3])
    else:
        mask = alive.unsqueeze(1)
        weight = mask * row_scale(graph, alive) if rescaled else mask.expand(graph.shape[:3])
        weight = weight.reshape_as(score)
        for _ in range(rounds):
            score = (score * weight) @ flat
        score = score.reshape(graph.shape[:3]) * mask
    return score / score.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(score.dtype).tiny)


def row_scale(
    graph: Float[Tensor, "batch heads tokens tokens"], alive: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch heads tokens"]:
    """What brings each row back to sum 1 on the living tokens; 0 for a row that has none of it."""
    voters = alive[:, None, None].expand(-1, graph.shape[1], -1, -1)
    reach = (voters @ graph.transpose(-2, -1)).squeeze(-2)
    lost = reach <= torch.finfo(reach.dtype).tiny
    return torch.where(lost, 0.0, 1 / reach.masked_fill(lost, 1.0))


def head_variance(
    score: Float[Tensor, "batch heads tokens"],
    prefix: int,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Variance of each head's patch scores after scaling them to mean 1.

    On the raw probabilities it could never exceed 1/N, and VHF would leave out every head.
    """
    patches = score[..., prefix:]
    if alive is None:
        patches = patches / patches.mean(dim=-1, keepdim=True)
        return patches.var(dim=-1, correction=0)
    mask = alive[:, None, prefix:]
    count = mask.sum(dim=-1)
    mean = (patches * mask).sum(dim=-1) / count
    spread = (patches / mean.unsqueeze(-1) - 1) * mask
    return spread.square().sum(dim=-1) / count


def heads_in_range(
    variance: Float[Tensor, "batch heads"], low: float, high: float
) -> Bool[Tensor, "batch heads"]:
    """Variance-based Head Filter (Sec. 3.2): which heads count; all of them if none would."""
    inside = (variance >= low) & (variance <= high)
    return inside | ~inside.any(dim=-1, keepdim=True)


def combine_heads(
    score: Float[Tensor, "batch heads tokens"],
    rule: HeadRule = "eir",
    counted: Bool[Tensor, "batch heads"] | None = None,
) -> Float[Tensor, "batch tokens"]:
    """One importance from all heads: the Emphasizing Informative Region rule (Eq. 2) by default,
    the root of the mean square; or their mean or maximum."""
    if rule == "max":
        if counted is not None:
            score = score.masked_fill(~counted.unsqueeze(-1), -torch.inf)
        return score.amax(dim=1)
    values = score.square() if rule == "eir" else score
    if counted is None:
        values = values.mean(dim=1)
    else:
        weight = counted.to(values.dtype)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        values = (values * weight.unsqueeze(-1)).sum(dim=1)
    return values.sqrt() if rule == "eir" else values


@runtime_checkable
class RowGraph(Protocol):
    """An attention graph that shows single rows."""

    @property
    def alive(self) -> Float[Tensor, "batch tokens"] | None:
        """1 or 0 for each token; None where all live."""

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        """The attention that one token pays to all tokens of the whole graph."""


@runtime_checkable
class ColumnGraph(RowGraph, Protocol):
    """An attention graph that shows single rows, and the sums of its columns."""

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        """The attention that each token receives on average: one vote from the uniform start."""


@runtime_checkable
class Graph(ColumnGraph, Protocol):
    """An attention graph to vote on, however it is held."""

    def without(self, dropped: Int[Tensor, "batch dropped"], rescaled: bool = True) -> Graph:
        """The graph restricted to the other tokens, its rows scaled back to sum 1 or not."""

    def start(self, cls_weight: float | None = None) -> Float[Tensor, "batch heads tokens"]:
        """The first scores, see `start_scores`."""

    def vote(
        self, score: Float[Tensor, "batch heads tokens"], rounds: int
    ) -> Float[Tensor, "batch heads tokens"]:
        """Weighted PageRank, see `vote`."""


class DenseGraph(NamedTuple):
    """A graph in memory, all its weights written down."""

    weights: Float[Tensor, "batch heads tokens tokens"]
    alive: Float[Tensor, "batch tokens"] | None = None
    rescaled: bool = True

    def without(self, dropped: Int[Tensor, "batch dropped"], rescaled: bool = True) -> DenseGraph:
        return self._replace(alive=living(self.weights[:, 0, 0], dropped), rescaled=rescaled)

    def start(self, cls_weight: float | None = None) -> Float[Tensor, "batch heads tokens"]:
        return start_scores(self.weights, cls_weight, self.alive)

    def vote(
        self, score: Float[Tensor, "batch heads tokens"], rounds: int
    ) -> Float[Tensor, "batch heads tokens"]:
        return vote(self.weights, score, rounds, self.alive, self.rescaled)

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        return self.weights[:, :, token]

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        return self.vote(self.start(), rounds=1)


def living(
    like: Float[Tensor, "batch tokens"], dropped: Int[Tensor, "batch dropped"]
) -> Float[Tensor, "batch tokens"]:
    """1 for each token that is not dropped, 0 for the others."""
    return torch.ones_like(like).scatter(1, dropped, 0.0)


def cls_attention(graph: RowGraph) -> Float[Tensor, "batch tokens"]:
    """The attention that CLS (token 0) pays to each living token, averaged over heads."""
    row = graph.row(0)
    if graph.alive is not None:
        row = row * graph.alive.unsqueeze(1)
        row = row / row.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(row.dtype).tiny)
    return row.mean(dim=1)


def average_attention(graph: ColumnGraph) -> Float[Tensor, "batch tokens"]:
    """The attention that each token receives, averaged over voters and heads."""
    return graph.received().mean(dim=1)


def noise(
    count: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    keys: Int[Tensor, "batch 1"] | None = None,
) -> Float[Tensor, "*batch {count}"]:
    """Uniform pseudo-random numbers in [0, 1), the same on every device and in every call.

    Made by integer mixing and not by a generator, so that it traces into a compiled or exported
    graph, leaves the global random state alone, and gives every image of a batch the same draw; or
    one of its own, by its key.
    """
    mask = 0xFFFFFFFF
    bits = torch.arange(count, device=device, dtype=torch.int64) + (seed * 0x9E3779B1 & mask)
    if keys is not None:
        bits = (bits + keys * 0x85EBCA6B) & mask
    for shift, factor in ((16, 0x7FEB352D), (15, 0x046CA68B), (16, 1)):
        bits = ((bits ^ (bits // (1 << shift))) * factor) & mask  # not every runtime can shift
    return (bits // (1 << 8)).to(dtype) / (1 << 24)
