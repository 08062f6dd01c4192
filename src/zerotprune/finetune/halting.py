"""A-ViT in training: gradients through the blocks' shares, and the losses that make tokens halt."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..method import Method
from ..methods import AViT
from ..scoring.attention import Heads
from ..shapes import Bool, Float
from ..task import Task
from ..tokens import Tokens, mixed
from .forms import FORMS
from .in_place import InPlace


class Halt(NamedTuple):
    """What one block made of the tokens; prefix tokens come first."""

    halting: Float[Tensor, "batch tokens"]  # 0 for those that had halted before
    active: Bool[Tensor, "batch tokens"]  # when they entered the block
    remainder: Float[Tensor, "batch tokens"]  # their last share, where they halted here


def ponder_loss(halts: list[Halt]) -> Float[Tensor, ""]:
    """How many blocks a token takes part in, and its last share: the mean over tokens and images
    (Eq. 10)."""
    blocks = torch.stack([each.active.to(each.remainder.dtype) for each in halts]).sum(dim=0)
    return (blocks + torch.stack([each.remainder for each in halts]).sum(dim=0)).mean()


def prior_loss(
    halting: Float[Tensor, " blocks"], centre: int, spread: float = 1.0
) -> Float[Tensor, ""]:
    """KL between where tokens halt and where they should (Eq. 11): a bell around block `centre`,
    counted from 0, scaled so that the blocks before it have 0.98.

    >>> where = torch.tensor([0.01, 0.05, 0.3, 0.5, 0.3, 0.05, 0.01])
    >>> bool(prior_loss(where, centre=3) < prior_loss(where, centre=5))
    True
    """
    share = (halting / halting.sum()).clamp(0.01, 0.99)
    place = torch.arange(len(halting), device=halting.device, dtype=halting.dtype)
    bell = -((place - centre) / spread).square() / 2
    wanted = bell - bell[:centre].logsumexp(dim=0) + math.log(0.98)
    return (share * (share.log() - wanted)).sum()


class Halting(InPlace):
    """As it runs at inference, with padding in the place of tokens that have halted. Tokens halt by
    the model's own weights alone: it is the losses that teach them when.

    `centre`: where in the depth they should, as a share of it; A-ViT's own is the 9th block of 12.

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
        centre: float = 2 / 3,
    ) -> None:
        super().__init__(method)
        self.ponder_weight, self.prior_weight, self.centre = ponder_weight, prior_weight, centre

    def extra_loss(self, model: nn.Module) -> Tensor:
        if not self._noted:
            return super().extra_loss(model)
        where = torch.stack([each.halting.mean() for each in self._noted])
        centre = min(max(round(self.centre * len(where)), 1), len(where) - 1)
        prior = prior_loss(where, centre)
        return self.ponder_weight * ponder_loss(self._noted) + self.prior_weight * prior

    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        method = self.method
        assert isinstance(method, AViT)
        if task.stage is None and not task.last:
            return tokens
        halting = method.halting(tokens.x)
        spent = torch.zeros_like(halting) if tokens.mixture is None else tokens.mixture.spent
        active, share = method.goes_on(spent), method.share(halting, spent)
        if task.last:  # the last share is what is left, see `Tokens.read`
            share = torch.where(active, 1 - spent, 0.0)
        onward = method.goes_on(spent + share)
        remainder = torch.where(active & ~onward, share, 0.0)
        self._noted.append(Halt(torch.where(active, halting, 0.0), active, remainder))
        if task.last:
            return tokens
        prefix, batch, count = task.geometry.prefix, *spent.shape
        valid = torch.cat((torch.ones_like(onward[:, :prefix]), onward[:, prefix:]), dim=1)
        all_of_them = torch.arange(count, device=spent.device).expand(batch, -1)
        return tokens._replace(mixture=mixed(tokens, share, all_of_them, prefix), valid=valid)


FORMS[AViT] = Halting
