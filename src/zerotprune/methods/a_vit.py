"""A-ViT: a token halts when it has seen enough, as one channel says (Yin et al., CVPR 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..cost import Geometry
from ..knobs import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage
from ..scoring.precision import widened
from ..shapes import Float
from ..tokens import Reduction

#: the largest value that the channel is taken to have, in units of 1/gamma: both ends of the dial
_REACH = 500.0


@dataclass(frozen=True)
class AViT(Method):
    """Each block gives a token the share σ(gamma · first channel + beta), the last one what is left
    of 1. A patch token whose shares are 1 but for `rest` takes no part in later blocks, and what
    the head reads of the prefix tokens is the mean over the blocks by their shares.

    An image keeps as many tokens as it needs; batches stay rectangular, with padding that nobody
    attends to. Prefix tokens stay to the end. The stage's own numbers are not used, only its place.

    Without training the channel means nothing.
    """

    name = "a-vit"
    adaptive = True
    searchable = None
    gamma: float = 10.0
    beta: float = -30.0
    rest: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf or not math.isfinite(self.beta):
            raise ValueError(
                f"gamma must be a positive number and beta a number, got {self.gamma}, {self.beta}"
            )
        if not 0 < self.rest < 1:
            raise ValueError(f"rest must be between 0 and 1, got {self.rest}")

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """beta, with a stage at every block but the last."""
        yield partial(_shifted, self, range(1, geometry.depth))

    def kept(self, stage: Stage, patches: int) -> int:
        return patches

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls or geometry.pools_patches:
            raise ValueError(
                "A-ViT mixes what CLS was in each block, and this model's head does not read CLS "
                "alone"
            )

    def decides_after(self) -> Part:
        return "mlp"

    def halting(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens"]:
        """h (Eq. 4): how much a token has had enough, by this block alone."""
        return torch.sigmoid(self.gamma * widened(x[..., 0]) + self.beta)

    def share(
        self, halting: Float[Tensor, "batch tokens"], spent: Float[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        """p (Eq. 8): h while a token goes on, what is left of 1 where it halts, 0 afterwards."""
        share = torch.where(self.goes_on(spent + halting), halting, 1 - spent)
        return torch.where(self.goes_on(spent), share, 0.0)

    def goes_on(self, spent: Tensor) -> Tensor:
        return spent <= 1 - self.rest

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        tokens = seen.tokens
        halting = self.halting(tokens.x)
        spent = torch.zeros_like(halting) if tokens.mixture is None else tokens.mixture.spent
        share = self.share(halting, spent)
        left = (1 - spent - share)[:, seen.prefix :]
        keep = torch.arange(seen.patches, device=left.device).expand(left.shape[0], -1)
        valid = self.goes_on(spent + share)[:, seen.prefix :]
        return Reduction(keep, left, valid=valid, share=share)


def _shifted(method: AViT, blocks: range, cut: float) -> Schedule:
    beta = (2 * cut - 1) * _REACH
    return Schedule(tuple(Stage(block) for block in blocks), replace(method, beta=beta))
