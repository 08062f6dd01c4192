"""Top-k by one score: baselines that rank tokens by attention or at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..cost import Geometry
from ..method import Method, Seen
from ..schedule import Stage
from ..scoring.graph import Graph, average_attention, cls_attention, noise
from ..shapes import Float
from ..tokens import Reduction

Score = Literal["cls", "average", "accumulated", "random"]
Draw = Literal["shared", "image"]


def random_scores(seen: Seen, seed: int, draw: Draw) -> Float[Tensor, "batch patches"]:
    """Return random numbers for the patch tokens: the same for all images, or with draw="image"
    keyed by the tokens of an image, so that they do not depend on its batch."""
    x = seen.tokens.x
    if draw == "shared":
        return noise(seen.patches, seed, x.device).expand(x.shape[0], -1)
    keys = x.detach().float().view(torch.int32).to(torch.int64).sum(dim=(1, 2), keepdim=True)
    return noise(seen.patches, seed, x.device, keys=keys.squeeze(2) & 0xFFFFFFFF)


def rank(
    seen: Seen, by: Score, block: int, seed: int, graph: Graph | None, draw: Draw = "shared"
) -> Float[Tensor, "batch patches"]:
    """Return the score of every patch token; those from a graph are over its living tokens."""
    if by == "random":
        return random_scores(seen, seed * 4096 + block, draw)
    if by == "accumulated":
        assert seen.tokens.history is not None
        return seen.tokens.history
    if by == "cls":
        return cls_attention(graph or seen.rows)[:, seen.prefix :]
    assert graph is not None
    return average_attention(graph)[:, seen.prefix :]


@dataclass(frozen=True)
class TopK(Method):
    """Keep the tokens with the highest score, as many as Zero-TPrune would at the same stage.

    Args:
        by: The attention from CLS ("cls") or from all tokens ("average") in this block, the
            "average" accumulated over all blocks so far ("accumulated"), or "random".
        seed: For "random".
        draw: For "random": one draw "shared" by all images, or one for each "image".
    """

    name = "top-k"
    variants: ClassVar = {
        "cls-attention": {"by": "cls"},
        "average-attention": {"by": "average"},
        "accumulated-attention": {"by": "accumulated"},
        "random": {"by": "random"},
    }
    by: Score = "average"
    seed: int = 0
    draw: Draw = "shared"

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if self.by == "cls" and not geometry.cls:
            raise ValueError("cls-attention needs a CLS token, and this model has none")

    def wants_graph(self, stage: Stage) -> bool:
        return self.by == "average"

    def wants_history(self) -> bool:
        return self.by == "accumulated"

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        importance = rank(seen, self.by, stage.block, self.seed, seen.graph, self.draw)
        return Reduction(seen.scorer.top(importance, self.kept(stage, seen.patches)), importance)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        if self.by == "cls":
            return geometry.row(stage.block, patches)
        return geometry.votes(stage.block, patches) if self.by == "average" else 0
