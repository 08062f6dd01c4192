"""Zero-TPrune in training: a soft threshold on importance, through which the scores learn too.

As in the paper (supplement C), a Zero-TPrune that is trained has I-stages alone, in training and in
use: to make its S-stage differentiable would be too expensive.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..block import Task
from ..method import Method, Seen
from ..methods import ZeroTPrune
from ..schedule import Schedule
from ..scoring.attention import Heads
from ..scoring.graph import DenseGraph, attention_graph
from ..shapes import Float
from ..tokens import Tokens
from .forms import FORMS, InPlace


def soft_mask(
    importance: Float[Tensor, "batch patches"],
    before: Float[Tensor, "batch patches"] | None,
    count: int,
    temperature: float,
) -> Float[Tensor, "batch patches"]:
    """Return σ((s − θ)/T) (supplement C), times what was left of each token before. The scores are
    scaled to mean 1 over what is left; θ is half-way between the last of `count` tokens and the
    next.

    >>> soft_mask(torch.tensor([[1.0, 3.0, 2.0]]), None, count=1, temperature=0.1).round(decimals=3)
    tensor([[0.0010, 0.9240, 0.0760]])
    """
    weight = torch.ones_like(importance) if before is None else before
    mean = (importance * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True)
    score = importance / mean
    threshold = score.topk(count + 1, dim=1).values[:, -2:].mean(dim=1, keepdim=True)
    mask = weight * torch.sigmoid((score - threshold) / temperature)
    # Its logarithm is added to attention, and its square has a root: neither has a slope at 0.
    return mask.clamp_min(torch.finfo(mask.dtype).eps)


class SoftMask(InPlace):
    """The I-stages prune, to the counts that they have in use. A token counts for as much as its
    mask says in attention, in a head that pools and in the distance to a teacher's tokens;
    gradients go through mask and scores. A schedule with S-stages is refused.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5)
    >>> form = SoftMask(ztp.ZeroTPrune())
    >>> method = form.budgeted(ztp.ZeroTPrune())  # which meets a budget by I-stages alone
    >>> form.put_on(model, ztp.schedule_for(model, cost=0.7, method=method))
    >>> model.train()(torch.zeros(2, 3, 160, 160)).sum().backward()
    >>> form.kept(model).shape
    torch.Size([2, 100])
    """

    def __init__(self, method: Method, temperature: float = 0.05) -> None:
        super().__init__(method)
        self.temperature = temperature

    def budgeted(self, method: Method) -> Method:
        assert isinstance(method, ZeroTPrune)
        return replace(method, form="importance")

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        for stage in schedule.stages:
            if stage.similar:
                raise ValueError(
                    "Zero-TPrune is trained with I-stages alone, and the stage at block "
                    f"{stage.block} prunes {stage.similar} similar tokens: set `similar` to 0, or "
                    "give a budget"
                )
        if schedule.method.wants_history():
            raise ValueError(
                "attention that is summed up over the blocks has no form to be trained in: take "
                "another ranking"
            )
        super().put_on(model, schedule)

    def attend(
        self, task: Task, tokens: Tokens, heads: list[Heads]
    ) -> tuple[list[Tensor], Tensor | None]:
        if task.stage is None or task.stage.keep == 1:
            return super().attend(task, tokens, heads)
        sized = [part._replace(size=tokens.size) for part in heads]
        graphs = [attention_graph(part.q, part.k, part.scale, part.logit_bias()) for part in sized]
        outputs = [
            F.dropout(graph, part.dropout).to(part.v.dtype) @ part.v
            for graph, part in zip(graphs, heads, strict=True)
        ]
        return outputs, torch.cat(graphs, dim=1)

    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        if task.stage is None or task.stage.keep == 1:
            return tokens
        assert graph is not None
        assert isinstance(self.method, ZeroTPrune)
        prefix, patches = task.geometry.prefix, task.geometry.patches
        shown, count = self._counts[task.stage.block]
        alive = tokens.size
        weighted = DenseGraph(graph, alive, self.method.rescale)
        seen = Seen(tokens, tokens.x, heads, weighted, task.geometry)
        importance = self.method.importance(seen, task.stage, weighted, dead=patches - shown)
        before = None if alive is None else alive[:, prefix:]
        mask = soft_mask(importance, before, count, self.temperature)
        return tokens._replace(size=torch.cat((torch.ones_like(mask[:, :prefix]), mask), dim=1))


FORMS[ZeroTPrune] = SoftMask
