"""The socket for training forms: how a method runs while its model learns, and its own losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..method import Method
from ..pruning import prune_
from ..schedule import Schedule


class Form(ABC):
    """How one training runs. It may note, from a forward to the next, what its losses need."""

    @abstractmethod
    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        """Run the model so from now on, in place. What is new lies on it, see `learned`; what
        it has learned already is kept."""

    def new_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """What is new: it has a learning rate of its own, and with --frozen nothing else learns."""
        return []

    def extra_loss(self, model: nn.Module) -> Tensor:
        """The method's own terms, of the last forward in training mode."""
        first = next(backbone(model).model.parameters())
        return torch.zeros((), device=first.device)

    def kept(self, model: nn.Module) -> Tensor | None:
        """How far each patch of the grid was still kept at the end of the last forward, (batch,
        patches), where all tokens leave the last block; None where those that leave it are kept."""
        return None

    def take_off(self, model: nn.Module, schedule: Schedule) -> None:
        """Leave the model as it is used, in place: hard-pruned, to the same counts."""
        prune_(model, schedule)


#: the forms of methods that do not learn as they prune, by the method's class
FORMS: dict[type[Method], Callable[[Method], Form]] = {}


class Hard(Form):
    """As the method prunes: gradients go through what is kept or merged, none through the choice.

    >>> import timm, torch, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5)
    >>> form = form_for(ztp.methods.Fold())
    >>> form.put_on(model, ztp.schedule_for(model, cost=0.7))
    >>> model.train()(torch.zeros(2, 3, 160, 160)).sum().backward()
    >>> float(form.extra_loss(model)), form.new_parameters(model)
    (0.0, [])
    """

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        # All tokens leave the last block: they are compared with the teacher's. The kernels for
        # GPUs have no backward pass, and are not worth compiling for the choice alone.
        prune_(model, schedule, compute="all", backend="reference")


def form_for(method: Method) -> Form:
    """The form that a method, or the class it inherits from, is trained in; else `Hard`.

    >>> from zerotprune.methods import ToMe
    >>> type(form_for(ToMe())).__name__
    'Hard'
    """
    for kind in type(method).__mro__:
        if kind in FORMS:
            return FORMS[kind](method)
    return Hard()
