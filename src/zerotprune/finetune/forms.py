"""The form that a method trains in: how blocks run while the model learns, and its own losses.

Most methods train as they prune (`Hard`). Zero-TPrune trains by a soft threshold on importance
(`SoftMask`). DynamicViT and A-ViT bring forms of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import backbone
from ..backbones.ending import as_forward
from ..block import PrunedBlock, Task
from ..method import Method, Seen
from ..methods import ZeroTPrune
from ..pruning import prune_
from ..schedule import Schedule
from ..scoring.attention import Heads, output
from ..scoring.graph import DenseGraph, attention_graph, no_autocast
from ..shapes import Float
from ..surgery import exchange_blocks
from ..tokens import Tokens


class Form(ABC):
    """How a method trains. A form may keep values of a forward for the losses that follow."""

    @abstractmethod
    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        """Run the model in this form from now on, in place, and keep what it has learned."""

    def budgeted(self, method: Method) -> Method:
        """Return the method whose schedules meet a budget in training."""
        return method

    def new_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the method's own parameters. They have a learning rate of their own, and with
        --frozen nothing else learns."""
        return []

    def extra_loss(self, model: nn.Module) -> Tensor:
        """Return the method's own loss terms for the last forward in training mode."""
        first = next(backbone(model).model.parameters())
        return torch.zeros((), device=first.device)

    def kept(self, model: nn.Module) -> Tensor | None:
        """Return the mask of each patch at the end of the last forward, (batch, patches), if all
        tokens leave the last block; None if only kept tokens do."""
        return None

    def take_off(self, model: nn.Module, schedule: Schedule) -> None:
        """Change the model in place to its form for inference: hard-pruned, to the same counts."""
        prune_(model, schedule)


#: the forms of methods that do not train as they prune, by the method's class
FORMS: dict[type[Method], Callable[[Method], Form]] = {}


class Hard(Form):
    """Train as the method prunes: gradients flow through kept and merged tokens, none through the
    choice.

    >>> import timm, torch, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5)
    >>> form = form_for(ztp.methods.Fold())
    >>> form.put_on(model, ztp.schedule_for(model, cost=0.7))
    >>> model.train()(torch.zeros(2, 3, 160, 160)).sum().backward()
    >>> float(form.extra_loss(model)), form.new_parameters(model)
    (0.0, [])
    """

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        # All tokens leave the last block: they are compared with the teacher's. The GPU kernels
        # have no backward pass, and are not worth compiling for the choice alone.
        prune_(model, schedule, compute="all", backend="reference")


def form_for(method: Method) -> Form:
    """Return the form that a method, or a class it inherits from, trains in; else `Hard`.

    >>> from zerotprune.methods import ToMe
    >>> type(form_for(ToMe())).__name__
    'Hard'
    """
    for kind in type(method).__mro__:
        if kind in FORMS:
            return FORMS[kind](method)
    return Hard()


class InPlace(Form):
    """Train with every token in its place, counting for as much as a mask says.

    In training mode the blocks from the first stage on pass all tokens on, with the mask as their
    `size` or `valid`. In eval mode the model is hard-pruned. Notes for the losses are dropped at
    the next forward and are not copied with the model.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._noted: list[Any] = []
        self._final: Tensor | None = None
        self._model: nn.Module | None = None
        self._counts: dict[int, tuple[int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noted": [], "_final": None}

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        """Attach the form. All tokens leave the last block, to be compared with a teacher's."""
        vit = backbone(model)
        pooled = vit.ending(proportional=1.0) if vit.geometry.pools_patches else None
        weighs = pooled is not None and pooled.proportional is not None
        if vit.geometry.pools_patches and not (weighs and vit.geometry.weighs_sizes):
            raise ValueError(
                "this model's head cannot weigh patch tokens by their mask, which "
                "training needs: fold and tome train with any head"
            )
        prune_(model, schedule, compute="all")
        self._model, patches = vit.model, vit.geometry.patches
        for stage in schedule.stages:
            kept = self.method.kept(stage, patches)
            self._counts[stage.block], patches = (patches, kept), kept
        exchange_blocks(model, lambda block: InPlaceBlock(block, self))
        if pooled is not None:
            cast(Any, vit.model).forward = as_forward(pooled)

    def kept(self, model: nn.Module) -> Float[Tensor, "batch patches"] | None:
        return self._final

    @property
    def on(self) -> bool:
        return self._model is not None and self._model.training

    def begin(self) -> None:
        """Forget the last forward and start a new one."""
        self._noted, self._final = [], None

    def end(self, weight: Float[Tensor, "batch patches"]) -> None:
        """Record the mask of each patch token."""
        self._final = weight

    def attend(
        self, task: Task, tokens: Tokens, heads: list[Heads]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return each attention's output, and the graph of all heads if the stage reads it."""
        weight = tokens.weight()
        return [output(part._replace(size=weight)) for part in heads], None

    @abstractmethod
    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        """Return the tokens after a block with the mask that they go on with."""


class InPlaceBlock(PrunedBlock):
    """A pruned block that runs in a training form while the model is in training mode."""

    def __init__(self, block: PrunedBlock, form: InPlace) -> None:
        super().__init__(block.vit, block.block, block.task, block.plan)
        self.form = form

    def run(
        self, x: Tensor | Tokens, kwargs: dict[str, Any], left: list[Tokens] | None = None
    ) -> Tensor | Tokens:
        parts, task, form = self.parts, self.task, self.form
        if not form.on:
            return super().run(x, kwargs, left)
        prefix = task.geometry.prefix
        if not task.follows:
            form.begin()
        tokens = Tokens.of(x, prefix)
        heads = parts.attend(tokens, kwargs)
        outputs, graph = form.attend(task, tokens, heads)
        tokens = tokens._replace(x=parts.feed(parts.join(tokens.x, heads, outputs)))
        with no_autocast(tokens.x):
            tokens = form.weigh(task, tokens, heads, graph)
        if task.last and (weight := tokens.weight()) is not None:
            form.end(weight[:, prefix:])
        return self._hand_on(tokens, left if task.last else None)


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
    """Train the I-stages with a soft mask, at the counts that they have in use.

    A token counts for as much as its mask says in attention, in a head that pools and in the
    distance to a teacher's tokens; gradients go through mask and scores.

    As in the paper (supplement C), a trained Zero-TPrune has I-stages alone, in training and in
    use: making its S-stage differentiable would be too expensive. A schedule with S-stages is
    refused.

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
                "attention summed over the blocks cannot be trained with a mask: choose another "
                "ranking"
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
