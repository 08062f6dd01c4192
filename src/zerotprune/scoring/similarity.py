"""Similarity between tokens: partition, metric and matching of the S-stage. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..shapes import Float, Int
from .graph import widen
from .indexing import descending, largest, take

Partition = Literal[
    "sequential-u", "sequential-i", "alternate", "alternate-top", "none", "none-both"
]
#: where a token looks for its partner: in the other group, or where there is one group, among the
#: tokens before it or among all others
Among = Literal["others", "earlier", "all"]
AMONG: dict[Partition, Among] = {"none": "earlier", "none-both": "all"}
Metric = Literal[
    "cosine",
    "dot",
    "minkowski-1",
    "minkowski-2",
    "minkowski-3",
    "minkowski-4",
    "minkowski-5",
    "minkowski-inf",
]


class Matching(NamedTuple):
    """Outcome of the S-stage, as indices of patch tokens."""

    dropped: Int[Tensor, "batch dropped"]  # the most similar pair first
    partner: Int[Tensor, "batch dropped"]  # the token that made it redundant
    left: Int[Tensor, "batch left"]


class Folding(NamedTuple):
    """Which of every second token are folded into which of the others, as indices of tokens."""

    keep: Int[Tensor, "batch kept"]  # what stays of the group that may go, then the other group
    gone: Int[Tensor, "batch gone"]  # the cheapest first
    partner: Int[Tensor, "batch gone"]
    into: Int[Tensor, "batch gone"]  # the index of the partner in `keep`


def split(
    importance: Float[Tensor, "batch patches"],
    partition: Partition,
    order: Callable[[Tensor], Tensor] = descending,
) -> tuple[Int[Tensor, "batch group_a"], Int[Tensor, "batch group_b"]]:
    """Split tokens into two groups (Sec. 3.3): A may be pruned for its similarity to B.

    "sequential-u" puts the more important half into B, "sequential-i" the less important half.
    "alternate" and "alternate-top" deal the tokens out by importance, from the bottom or from the
    top; they differ in where an odd token goes. Without a partition both groups hold all tokens:
    "none" prunes the less important token of a pair, "none-both" takes the paper literally and may
    prune both. (A random partition is "sequential-u" by random numbers.)
    """
    indices = order(-importance if partition == "sequential-i" else importance)
    half = importance.shape[-1] // 2
    if partition == "none":
        return indices, indices
    if partition == "none-both":  # of equally similar tokens the less important goes first
        return indices.flip(-1), indices
    if partition == "alternate-top":
        return indices[:, 1::2], indices[:, 0::2]
    if partition == "alternate":
        indices = indices.flip(-1)
        return indices[:, 0::2], indices[:, 1::2]
    return indices[:, half:], indices[:, :half]


def normalize(x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
    """Scale tokens to length 1. `torch.nn.functional.normalize` gives the same bits with two more
    calls of Python."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.clamp_min(1e-12)


def similarity(
    a: Float[Tensor, "batch group_a width"], b: Float[Tensor, "batch group_b width"], metric: Metric
) -> Float[Tensor, "batch group_a group_b"]:
    """Return the similarity of every token of A to every token of B; distances are negated."""
    a, b = widen(a), widen(b)
    if metric == "cosine":
        a, b = normalize(a), normalize(b)
    if metric in ("cosine", "dot"):
        return a @ b.transpose(-2, -1)
    power = float(metric.removeprefix("minkowski-"))
    exact = "donot_use_mm_for_euclid_dist"
    return -torch.cdist(a, b, p=power, compute_mode=exact)


def nearest(
    features: Float[Tensor, "batch patches width"],
    group_a: Int[Tensor, "batch group_a"],
    group_b: Int[Tensor, "batch group_b"],
    metric: Metric = "cosine",
    among: Among = "others",
) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
    """Return for each token of A its highest similarity to a token of B, and the index of that
    token in B.

    If both groups hold all tokens, `among` is "earlier" for the same order, and "all" for A in
    reverse order.
    """
    if metric == "cosine":  # normalize once, not each group by itself
        features, metric = normalize(widen(features)), "dot"
    scores = similarity(take(features, group_a), take(features, group_b), metric)
    if among == "earlier":
        later = torch.ones_like(scores[0], dtype=torch.bool).triu()
        scores = scores.masked_fill(later, -torch.inf)
    elif among == "all":
        # Both tokens of a pair must have the same score, to the last bit.
        scores = (scores + scores.flip(-2, -1).transpose(-2, -1)) / 2
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device).flip(0)
        scores = scores.masked_fill(itself, -torch.inf)
    return largest(scores)
