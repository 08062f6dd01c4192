"""Similarity between tokens: partition, metric and matching of the S-stage. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batching import take
from ..shapes import Float, Int
from .ordering import descending, largest
from .precision import widened

Partition = Literal[
    "sequential-u", "sequential-i", "alternate", "alternate-top", "none", "none-both"
]
#: among whom a token looks for its partner: another group, those of its own that stand before it,
#: or all of its own but itself
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
    """Every second token may be folded into one of the others: who is, as indices of tokens."""

    keep: Int[Tensor, "batch kept"]  # what stays of the group that may go, then the other group
    gone: Int[Tensor, "batch gone"]  # the cheapest first
    partner: Int[Tensor, "batch gone"]
    into: Int[Tensor, "batch gone"]  # the partner's place in `keep`


def split(
    importance: Float[Tensor, "batch patches"],
    partition: Partition,
    order: Callable[[Tensor], Tensor] = descending,
) -> tuple[Int[Tensor, "batch group_a"], Int[Tensor, "batch group_b"]]:
    """Two groups (Sec. 3.3): tokens of A may be pruned for being like one of B.

    Sequential-U puts the more important half into B, sequential-I the less important half;
    alternate deals the tokens out in the order of importance, from the bottom or from the top:
    which matters only for the odd one. With no partition both groups are all tokens, and of a pair
    the less important one may go; or, read literally ("none-both"), both may. (A random partition
    is sequential-U by random numbers.)
    """
    ranked = order(-importance if partition == "sequential-i" else importance)
    half = importance.shape[-1] // 2
    if partition == "none":
        return ranked, ranked
    if partition == "none-both":  # of equally similar ones the less important goes first
        return ranked.flip(-1), ranked
    if partition == "alternate-top":
        return ranked[:, 1::2], ranked[:, 0::2]
    if partition == "alternate":
        ranked = ranked.flip(-1)
        return ranked[:, 0::2], ranked[:, 1::2]
    return ranked[:, half:], ranked[:, :half]


def similarity(
    a: Float[Tensor, "batch group_a width"], b: Float[Tensor, "batch group_b width"], metric: Metric
) -> Float[Tensor, "batch group_a group_b"]:
    """Likeness of every token of A with every token of B; distances are negated."""
    a, b = widened(a), widened(b)
    if metric == "cosine":
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
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
    """For each token of A its likeness with the most similar one of B, and that one's place in B.

    If both groups are all tokens: "earlier" for the same order, "all" for A in reverse order.
    """
    if metric == "cosine":  # all at once, and not the two groups one by one
        features, metric = F.normalize(widened(features), dim=-1), "dot"
    likeness = similarity(take(features, group_a), take(features, group_b), metric)
    if among == "earlier":
        later = torch.ones_like(likeness[0], dtype=torch.bool).triu()
        likeness = likeness.masked_fill(later, -torch.inf)
    elif among == "all":
        # Of a pair both must find the same likeness, to the last bit.
        likeness = (likeness + likeness.flip(-2, -1).transpose(-2, -1)) / 2
        itself = torch.eye(likeness.shape[-1], dtype=torch.bool, device=likeness.device).flip(0)
        likeness = likeness.masked_fill(itself, -torch.inf)
    return largest(likeness)
