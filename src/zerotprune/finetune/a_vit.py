"""A-ViT: a token halts when it has seen enough, as one channel says (Yin et al., CVPR 2022).

The method, and the losses that teach tokens when to halt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..block import Task
from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage
from ..scoring.attention import Heads
from ..scoring.graph import widen
from ..shapes import Bool, Float
from ..tokens import Reduction, Tokens
from .forms import FORMS, InPlace

#: the largest value that the channel is taken to have, in units of 1/gamma: both ends of the dial
_REACH = 500.0


class Mixture(NamedTuple):
    """What will be read of the prefix tokens: a mean over the blocks."""

    x: Float[Tensor, "batch prefix width"]  # their sum so far, weighted by the blocks' shares
    spent: Float[Tensor, "batch tokens"]  # the shares of every token so far


@dataclass(frozen=True)
class AViT(Method):
    """Halt tokens one by one. Each block gives a token the share σ(gamma · first channel + beta);
    the last block gives what is left of 1. A patch token halts once its shares sum to 1 − `rest`,
    and takes no part in later blocks. The head reads the mean of the prefix tokens over the blocks,
    weighted by their shares.

    An image keeps as many tokens as it needs; batches stay rectangular, with masked padding. Prefix
    tokens stay to the end. Only the block of a stage is used, not its numbers.

    Without training the channel means nothing.
    """

    name = "a-vit"
    adaptive = True
    searchable = None
    gamma: float = 10.0
    beta: float = -30.0
    rest: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma <= 0:
            raise ValueError(f"gamma must be a positive number, got {self.gamma}")
        if not 0 < self.rest < 1:
            raise ValueError(f"rest must be between 0 and 1, got {self.rest}")

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """Turn beta, with a stage at every block but the last."""
        yield partial(_shifted, self, range(1, geometry.depth))

    def kept(self, stage: Stage, patches: int) -> int:
        return patches

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        if not geometry.cls or geometry.pools_patches:
            raise ValueError(
                "A-ViT averages the CLS tokens of all blocks, but this model's head does not read "
                "CLS alone"
            )

    def decides_after(self) -> Part:
        return "mlp"

    def halting(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens"]:
        """Return h (Eq. 4): how close a token is to halting, by this block alone."""
        return torch.sigmoid(self.gamma * widen(x[..., 0]) + self.beta)

    def share(
        self, halting: Float[Tensor, "batch tokens"], spent: Float[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens"]:
        """Return p (Eq. 8): h while a token goes on, the rest of 1 where it halts, 0 afterwards."""
        share = torch.where(self.goes_on(spent + halting), halting, 1 - spent)
        return torch.where(self.goes_on(spent), share, 0.0)

    def goes_on(self, spent: Tensor) -> Tensor:
        return spent <= 1 - self.rest

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        tokens = seen.tokens
        halting = self.halting(tokens.x)
        spent = _spent(tokens, halting)
        share = self.share(halting, spent)
        left = (1 - spent - share)[:, seen.prefix :]
        keep = torch.arange(seen.patches, device=left.device).expand(left.shape[0], -1)
        valid = self.goes_on(spent + share)[:, seen.prefix :]
        return Reduction(keep, left, valid=valid, state=_mixed(tokens, share, seen.prefix))

    def read(self, tokens: Tokens, prefix: int) -> Float[Tensor, "batch tokens width"]:
        """Return the prefix tokens as their mean over the blocks; the last block has the rest."""
        mixture: Mixture | None = tokens.state
        if mixture is None:
            return tokens.x
        rest = (1 - mixture.spent[:, :prefix]).unsqueeze(-1)
        mixed = mixture.x + rest * widen(tokens.x[:, :prefix])
        return torch.cat((mixed.to(tokens.x.dtype), tokens.x[:, prefix:]), dim=1)


def _shifted(method: AViT, blocks: range, cut: float) -> Schedule:
    beta = (2 * cut - 1) * _REACH
    return Schedule(tuple(Stage(block) for block in blocks), replace(method, beta=beta))


def _spent(tokens: Tokens, like: Float[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens"]:
    return torch.zeros_like(like) if tokens.state is None else tokens.state.spent


def _mixed(tokens: Tokens, share: Float[Tensor, "batch tokens"], prefix: int) -> Mixture:
    """Return the mixture with this block's share added."""
    before: Mixture | None = tokens.state
    part = widen(tokens.x[:, :prefix]) * share[:, :prefix].unsqueeze(-1)
    if before is None:
        return Mixture(part, share)
    return Mixture(before.x + part, before.spent + share)


class Halt(NamedTuple):
    """What one block made of the tokens; prefix tokens come first."""

    halting: Float[Tensor, "batch tokens"]  # 0 for those that had halted before
    active: Bool[Tensor, "batch tokens"]  # when they entered the block
    remainder: Float[Tensor, "batch tokens"]  # their last share, where they halted here


def ponder_loss(halts: list[Halt]) -> Float[Tensor, ""]:
    """Return the mean over tokens and images of the number of blocks of a token plus its last share
    (Eq. 10)."""
    blocks = torch.stack([halt.active.to(halt.remainder.dtype) for halt in halts]).sum(dim=0)
    return (blocks + torch.stack([halt.remainder for halt in halts]).sum(dim=0)).mean()


def prior_loss(
    halting: Float[Tensor, " blocks"], center: int, spread: float = 1.0
) -> Float[Tensor, ""]:
    """Return KL(where tokens should halt ‖ where they do) / blocks (Eq. 11, as in the authors'
    code). They should halt in a bell around block `center`, counted from 0, scaled so that the
    blocks before it sum to 0.98.

    >>> where = torch.tensor([0.01, 0.05, 0.3, 0.5, 0.3, 0.05, 0.01])
    >>> bool(prior_loss(where, center=3) < prior_loss(where, center=5))
    True
    """
    share = (halting / halting.sum()).clamp(0.01, 0.99)
    place = torch.arange(len(halting), device=halting.device, dtype=halting.dtype)
    bell = -((place - center) / spread).square() / 2
    wanted = bell - bell[:center].logsumexp(dim=0) + math.log(0.98)
    return (wanted.exp() * (wanted - share.log())).mean()


class Halting(InPlace):
    """Train as at inference, with padding in place of tokens that have halted. Tokens halt by the
    model's own weights; the losses teach them when.

    `center` is where they should halt, as a share of the depth; A-ViT's own is the 9th block of 12.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5)
    >>> form = Halting(ztp.methods.AViT(beta=-1.0))
    >>> stages = [ztp.Stage(block) for block in range(1, len(model.blocks))]
    >>> form.put_on(model, ztp.Schedule(stages, form.method))
    >>> loss = model.train()(torch.zeros(2, 3, 160, 160)).sum() + form.extra_loss(model)
    >>> loss.backward()
    """

    def __init__(
        self,
        method: Method,
        ponder_weight: float = 5e-4,
        prior_weight: float = 1e-3,
        center: float = 2 / 3,
    ) -> None:
        super().__init__(method)
        self.ponder_weight, self.prior_weight, self.center = ponder_weight, prior_weight, center

    def extra_loss(self, model: nn.Module) -> Tensor:
        if not self._noted:
            return super().extra_loss(model)
        where = torch.stack([halt.halting.mean() for halt in self._noted])
        center = min(max(round(self.center * len(where)), 1), len(where) - 1)
        prior = prior_loss(where, center)
        return self.ponder_weight * ponder_loss(self._noted) + self.prior_weight * prior

    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        method = self.method
        assert isinstance(method, AViT)
        if task.stage is None and not task.last:
            return tokens
        halting = method.halting(tokens.x)
        spent = _spent(tokens, halting)
        active, share = method.goes_on(spent), method.share(halting, spent)
        if task.last:  # the last share is what is left, see `AViT.read`
            share = torch.where(active, 1 - spent, 0.0)
        onward = method.goes_on(spent + share)
        remainder = torch.where(active & ~onward, share, 0.0)
        self._noted.append(Halt(torch.where(active, halting, 0.0), active, remainder))
        if task.last:
            return tokens
        prefix = task.geometry.prefix
        valid = torch.cat((torch.ones_like(onward[:, :prefix]), onward[:, prefix:]), dim=1)
        return tokens._replace(state=_mixed(tokens, share, prefix), valid=valid)


FORMS[AViT] = Halting
