"""Top-k by one score: the baselines that drop tokens by chance or by the attention they receive."""

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


def drawn(seen: Seen, seed: int, draw: Draw) -> Float[Tensor, "batch patches"]:
    """Random numbers for the patch tokens: the same for all images, or each image's own. Its key
    are its tokens themselves, so that it does not depend on its batch."""
    x = seen.tokens.x
    if draw == "shared":
        return noise(seen.patches, seed, x.device).expand(x.shape[0], -1)
    keys = x.detach().float().view(torch.int32).to(torch.int64).sum(dim=(1, 2), keepdim=True)
    return noise(seen.patches, seed, x.device, keys=keys.squeeze(2) & 0xFFFFFFFF)


def rank(
    seen: Seen, by: Score, block: int, seed: int, graph: Graph | None, draw: Draw = "shared"
) -> Float[Tensor, "batch patches"]:
    """The score of every patch token. Accumulated attention was summed over all blocks so far;
    the two others are read off a graph, on its living tokens alone."""
    if by == "random":
        return drawn(seen, seed * 4096 + block, draw)
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

    by:   "cls" or "average" attention in this block, average attention "accumulated" over the
          blocks so far, or "random"
    seed: for "random"
    draw: for "random": one draw "shared" by all images, or one for each "image"; neither depends on
          the batch
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
            raise ValueError("ranking by CLS attention needs a CLS token, and this model has none")

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
