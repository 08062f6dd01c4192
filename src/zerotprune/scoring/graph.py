"""The attention graph and the importance of its tokens: votes, heads, rankings. Pure functions.

Section and equation names follow the paper (Wang, Dedhia, Jha: Zero-TPrune, CVPR 2024). Rows of a
graph sum to 1. Scores are float32 or wider, whatever the model's precision and under autocast too.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..shapes import Bool, Float, Int

#: how the scores of all heads become one importance
HeadRule = Literal["eir", "mean", "max"]
#: the tokens over which the variance of a head is taken
Over = Literal["patches", "all"]

# Looked up once: the compiler cannot trace the call.
_AUTOCAST_DEVICES = [
    device for device in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(device)
]


def widen(x: Tensor) -> Tensor:
    """Cast to float32, unless `x` is wider."""
    if x.dtype == torch.float32:  # the usual case, in every step of every stage
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32))


def is_autocast(x: Tensor) -> bool:
    """Return whether autocast is enabled on the device of `x`."""
    device = x.device.type
    return device in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast on the device of `x`: it would cast float32 matrix products back to half
    precision."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


def attention_graph(
    q: Float[Tensor, "batch heads queries width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    bias: Float[Tensor, "*any #queries tokens"] | None = None,
) -> Float[Tensor, "batch heads queries tokens"]:
    """Return A[h, i, j], the attention that token i pays to token j in head h (Sec. 3.2)."""
    if is_autocast(q):
        with no_autocast(q):
            return attention_graph(q, k, scale, bias)
    logits = (widen(q) * scale) @ widen(k).transpose(-2, -1)
    if bias is not None:
        logits = logits + bias
    return logits.softmax(dim=-1)


def start_scores(
    like: Float[Tensor, "batch heads tokens *any"],
    cls_weight: float | None = None,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads tokens"]:
    """Return the scores before the first round: equal for all living tokens, or `cls_weight` times
    as high for token 0."""
    batch, heads, tokens = like.shape[:3]
    scores = like.new_ones(1, 1, tokens)
    if cls_weight is not None:
        scores[..., 0] = cls_weight
    if alive is not None:
        scores = scores * alive.unsqueeze(1)
    return (scores / scores.sum(dim=-1, keepdim=True)).expand(batch, heads, tokens)


def vote(
    graph: Float[Tensor, "batch heads tokens tokens"],
    scores: Float[Tensor, "batch heads tokens"],
    rounds: int,
    alive: Float[Tensor, "batch tokens"] | None = None,
    rescaled: bool = True,
) -> Float[Tensor, "batch heads tokens"]:
    """Run weighted PageRank (Alg. 1, Eq. 1): `rounds` times s ← Aᵀs, then scale s to sum 1 per
    head.

    With `alive` (1 or 0 for each token), vote on the subgraph of the living tokens, its rows scaled
    back to sum 1 if `rescaled`. The subgraph is not cut out: the scale of a row moves to the vote
    that it casts. Voting is linear, so scaling once at the end equals scaling in each round.
    """
    flat = graph.flatten(0, 1)
    scores = scores.reshape(flat.shape[0], 1, scores.shape[-1])
    if alive is None:
        for _ in range(rounds):
            scores = scores @ flat
        scores = scores.reshape(graph.shape[:3])
    else:
        mask = alive.unsqueeze(1)
        weight = mask * row_scale(graph, alive) if rescaled else mask.expand(graph.shape[:3])
        weight = weight.reshape_as(scores)
        for _ in range(rounds):
            scores = (scores * weight) @ flat
        scores = scores.reshape(graph.shape[:3]) * mask
    return scores / scores.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


def row_scale(
    graph: Float[Tensor, "batch heads tokens tokens"], alive: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch heads tokens"]:
    """Return the factor that scales each row back to sum 1 over the living tokens; 0 for a row that
    attends to none of them."""
    voters = alive[:, None, None].expand(-1, graph.shape[1], -1, -1)
    total = (voters @ graph.transpose(-2, -1)).squeeze(-2)
    empty = total <= torch.finfo(total.dtype).tiny
    return torch.where(empty, 0.0, 1 / total.masked_fill(empty, 1.0))


def head_variance(
    scores: Float[Tensor, "batch heads tokens"],
    prefix: int,
    alive: Float[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Return the variance of each head's patch scores, scaled to mean 1.

    Unscaled it could never exceed 1/N, and VHF would filter out every head.
    """
    patches = scores[..., prefix:]
    if alive is None:
        patches = patches / patches.mean(dim=-1, keepdim=True)
        return patches.var(dim=-1, correction=0)
    mask = alive[:, None, prefix:]
    count = mask.sum(dim=-1)
    mean = (patches * mask).sum(dim=-1) / count
    deviation = (patches / mean.unsqueeze(-1) - 1) * mask
    return deviation.square().sum(dim=-1) / count


def heads_in_range(
    variance: Float[Tensor, "batch heads"], low: float, high: float
) -> Bool[Tensor, "batch heads"]:
    """Mark the heads that count by the variance-based head filter (Sec. 3.2); all if none would."""
    inside = (variance >= low) & (variance <= high)
    return inside | ~inside.any(dim=-1, keepdim=True)


def combine_heads(
    scores: Float[Tensor, "batch heads tokens"],
    rule: HeadRule = "eir",
    mask: Bool[Tensor, "batch heads"] | None = None,
) -> Float[Tensor, "batch tokens"]:
    """Reduce the scores of all heads, or of those in `mask`, to one importance.

    "eir" is the Emphasizing Informative Region rule (Eq. 2), the root mean square.
    """
    if rule == "max":
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        return scores.amax(dim=1)
    values = scores.square() if rule == "eir" else scores
    if mask is None:
        values = values.mean(dim=1)
    else:
        weight = mask.to(values.dtype)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        values = (values * weight.unsqueeze(-1)).sum(dim=1)
    return values.sqrt() if rule == "eir" else values


@runtime_checkable
class RowGraph(Protocol):
    """An attention graph that gives single rows."""

    @property
    def alive(self) -> Float[Tensor, "batch tokens"] | None:
        """1 or 0 for each token; None if all are alive."""

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        """Return the attention that one token pays to all tokens of the whole graph."""


@runtime_checkable
class ColumnGraph(RowGraph, Protocol):
    """An attention graph that gives single rows and the means of its columns. If not all of the
    graph is there, they are averaged over heads, as if there were one."""

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        """Return the mean attention that each token receives: one vote from the uniform start."""


@runtime_checkable
class Graph(ColumnGraph, Protocol):
    """An attention graph to vote on, whether it is in memory or not."""

    def without(self, dropped: Int[Tensor, "batch dropped"], rescaled: bool = True) -> Graph:
        """Restrict the graph to the other tokens; scale its rows back to sum 1 if `rescaled`."""

    def start(self, cls_weight: float | None = None) -> Float[Tensor, "batch heads tokens"]:
        """Return the scores before the first round, see `start_scores`."""

    def vote(
        self, scores: Float[Tensor, "batch heads tokens"], rounds: int
    ) -> Float[Tensor, "batch heads tokens"]:
        """Run weighted PageRank, see `vote`."""


class DenseGraph(NamedTuple):
    """An attention graph in memory."""

    weights: Float[Tensor, "batch heads tokens tokens"]
    alive: Float[Tensor, "batch tokens"] | None = None
    rescaled: bool = True

    def without(self, dropped: Int[Tensor, "batch dropped"], rescaled: bool = True) -> DenseGraph:
        return self._replace(alive=alive_mask(self.weights[:, 0, 0], dropped), rescaled=rescaled)

    def start(self, cls_weight: float | None = None) -> Float[Tensor, "batch heads tokens"]:
        return start_scores(self.weights, cls_weight, self.alive)

    def vote(
        self, scores: Float[Tensor, "batch heads tokens"], rounds: int
    ) -> Float[Tensor, "batch heads tokens"]:
        return vote(self.weights, scores, rounds, self.alive, self.rescaled)

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        return self.weights[:, :, token]

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        return self.vote(self.start(), rounds=1)


def alive_mask(
    like: Float[Tensor, "batch tokens"], dropped: Int[Tensor, "batch dropped"]
) -> Float[Tensor, "batch tokens"]:
    """Return 0 for the dropped tokens and 1 for all others."""
    return torch.ones_like(like).scatter(1, dropped, 0.0)


def cls_attention(graph: RowGraph) -> Float[Tensor, "batch tokens"]:
    """Return the attention that CLS (token 0) pays to each living token, averaged over heads."""
    row = graph.row(0)
    if graph.alive is not None:
        row = row * graph.alive.unsqueeze(1)
        row = row / row.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(row.dtype).tiny)
    return row.mean(dim=1)


def average_attention(graph: ColumnGraph) -> Float[Tensor, "batch tokens"]:
    """Return the attention that each token receives, averaged over queries and heads."""
    return graph.received().mean(dim=1)


def noise(
    count: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    keys: Int[Tensor, "batch 1"] | None = None,
) -> Float[Tensor, "*batch {count}"]:
    """Return uniform pseudo-random numbers in [0, 1), the same on every device and in every call.

    They come from mixing integers, not from a generator: that traces into compiled and exported
    graphs and leaves the global random state alone. All images get the same numbers, or with `keys`
    each image its own.
    """
    mask = 0xFFFFFFFF
    bits = torch.arange(count, device=device, dtype=torch.int64) + (seed * 0x9E3779B1 & mask)
    if keys is not None:
        bits = (bits + keys * 0x85EBCA6B) & mask
    for shift, factor in ((16, 0x7FEB352D), (15, 0x046CA68B), (16, 1)):
        bits = ((bits ^ (bits // (1 << shift))) * factor) & mask  # not every runtime can shift
    return (bits // (1 << 8)).to(dtype) / (1 << 24)
