"""DynamicViT in training: its predictors' decisions are drawn, and tokens that go are masked."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import backbone
from ..learned import learned_by
from ..method import Method
from ..methods import DynamicViT
from ..schedule import Schedule
from ..scoring.attention import Heads, output
from ..scoring.precision import no_autocast, widened
from ..shapes import Float
from ..task import Task
from ..tokens import Tokens
from .forms import FORMS
from .in_place import InPlace

#: keeps a row of which nothing is kept from being 0/0
_SMOOTHING = 1e-6


def masked_attention(
    part: Heads, kept: Float[Tensor, "batch tokens"], smoothing: float = _SMOOTHING
) -> Float[Tensor, "batch heads tokens width"]:
    """Attention to the tokens that are kept, and of every token to itself: so gradients reach the
    decision, which a product with 0 and a logarithm of 0 would not let through."""
    with no_autocast(part.q):
        logits = (widened(part.q) * part.scale) @ widened(part.k).transpose(-2, -1)
        if part.bias is not None:
            logits = logits + part.bias
        own = torch.eye(kept.shape[1], dtype=logits.dtype, device=logits.device)
        column = kept.to(logits.dtype)[:, None, None]
        paid = (logits - logits.amax(dim=-1, keepdim=True)).exp() * (column + (1 - column) * own)
        total = paid.sum(dim=-1, keepdim=True) + smoothing
        graph = (paid + smoothing / kept.shape[1]) / total
    return F.dropout(graph, part.dropout).to(part.v.dtype) @ part.v


def ratio_loss(
    decisions: list[Float[Tensor, "batch patches"]], shares: list[float]
) -> Float[Tensor, ""]:
    """How far each stage is from the share of all patches that it is to keep, squared; the mean
    over images and stages.

    >>> float(ratio_loss([torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])], [0.5, 0.25]))
    0.03125
    """
    pairs = zip(decisions, shares, strict=True)
    apart = [(kept.mean(dim=1) - share).square().mean() for kept, share in pairs]
    return torch.stack(apart).mean()


class Decisions(InPlace):
    """A predictor's log-probabilities, and noise, decide for each token; one that has gone does not
    come back. With `draw=False` the likeliest stay, as many as the schedule keeps: what inference
    does, with all tokens in place.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5)
    >>> form = Decisions(ztp.methods.DynamicViT())
    >>> form.put_on(model, ztp.schedule_for(model, cost=0.7, method=form.method))
    >>> loss = model.train()(torch.zeros(2, 3, 160, 160)).sum() + form.extra_loss(model)
    >>> loss.backward()
    >>> all(weight.grad is not None for weight in form.new_parameters(model))
    True
    """

    def __init__(self, method: Method, ratio_weight: float = 2.0, draw: bool = True) -> None:
        super().__init__(method)
        self.ratio_weight, self.draw = ratio_weight, draw

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        super().put_on(model, schedule)
        held = learned_by(backbone(model).model, self.method)
        assert held is not None
        held.drawn = False  # from now on they are worth keeping

    def new_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        held = learned_by(backbone(model).model, self.method)
        return [] if held is None else list(held.parameters())

    def extra_loss(self, model: nn.Module) -> Tensor:
        if not self._noted:
            return super().extra_loss(model)
        patches = backbone(model).geometry.patches
        shares = [kept / patches for shown, kept in self._counts.values() if kept < shown]
        return self.ratio_weight * ratio_loss(self._noted, shares)

    def attend(
        self, task: Task, tokens: Tokens, heads: list[Heads]
    ) -> tuple[list[Tensor], Tensor | None]:
        if tokens.size is None:
            return [output(part) for part in heads], None
        smoothing = _SMOOTHING if self.draw else 0.0
        return [masked_attention(part, tokens.size, smoothing) for part in heads], None

    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        if task.stage is None:
            return tokens
        assert task.weights is not None
        prefix = task.geometry.prefix
        x, before = widened(tokens.x[:, prefix:]), tokens.size
        held = None if before is None else before[:, prefix:]
        chances = task.weights(x, held)
        if self.draw:
            stays = F.gumbel_softmax(chances, hard=True, dim=-1)[..., 0]
            kept = stays if held is None else stays * held
        else:
            score = chances[..., 0]
            score = score if held is None else score.masked_fill(held == 0, -torch.inf)
            likeliest = score.topk(self._counts[task.stage.block][1], dim=1).indices
            kept = torch.zeros_like(score).scatter(1, likeliest, 1.0)
        self._noted.append(kept)
        return tokens._replace(size=torch.cat((torch.ones_like(kept[:, :prefix]), kept), dim=1))


FORMS[DynamicViT] = Decisions
