"""The form that a method trains in: how blocks run while the model learns, and its own losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..backbones.ending import as_forward
from ..block import PrunedBlock, Task
from ..method import Method
from ..pruning import prune_
from ..schedule import Schedule
from ..scoring.attention import Heads, output
from ..scoring.graph import no_autocast
from ..shapes import Float
from ..surgery import exchange_blocks
from ..tokens import Tokens


class Form(ABC):
    """How one training runs. A form may keep notes from a forward for the losses that follow."""

    @abstractmethod
    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        """Run the model in this form from now on, in place. What it has learned already stays."""

    def budgeted(self, method: Method) -> Method:
        """Return the method by whose schedules a budget is met where it is to be trained."""
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
        """Return how far each patch was still kept at the end of the last forward, (batch,
        patches), if all tokens leave the last block; None if those that leave it are kept."""
        return None

    def take_off(self, model: nn.Module, schedule: Schedule) -> None:
        """Leave the model as it is used, in place: hard-pruned, to the same counts."""
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
                "this model's head cannot weigh patch tokens by how far they are kept, which "
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
        """Start a forward: forget the last one."""
        self._noted, self._final = [], None

    def end(self, weight: Float[Tensor, "batch patches"]) -> None:
        """Note how far each patch token was still kept."""
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
        super().__init__(block.block, block.parts, block.task, block.plan, block.call)
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
