"""The contract of a library: what a Backbone knows of a model, and how its blocks are called."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from ..block import Parts
from ..cost import Geometry
from ..tokens import Tokens
from .ending import Ending, ending_of, hooks_on

__all__ = ["NO_MASK", "Backbone", "BlockCall", "Parts", "Pool", "Reading"]

#: the vector of an image: what the library's head reads, the CLS token, or the mean over patches
Pool = Literal["own", "cls", "mean"]

#: the error for an attention mask, in any library
NO_MASK = "a pruned model takes no attention mask: it would not fit the tokens that are left"


class BlockCall:
    """How a model calls its blocks: here, with x and keywords."""

    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        """Split a call into the residual stream and the keywords for `Parts.attend`."""
        (x,) = args
        return x, dict(kwargs)

    def checkpoint(self, block: nn.Module) -> Callable[..., Any] | None:
        """Return the function that runs a block under gradient checkpointing, if the library leaves
        that to the block's forward."""
        return None


def saving_method(save: Callable[..., Any], *args: Any) -> functools.partial[Any]:
    """Make a method for `Backbone.saving`, which `restore_` recognizes and removes."""
    return functools.partial(_save, save, *args)


def is_saving(method: object) -> bool:
    return isinstance(method, functools.partial) and method.func is _save


def _save(save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return save(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class Backbone(ABC):
    """A model as a sequence of blocks."""

    model: nn.Module
    geometry: Geometry
    blocks: Sequence[nn.Module]

    call: ClassVar[BlockCall] = BlockCall()
    #: how the library's models are entered and how they end
    ending_class: ClassVar[type[Ending]]
    #: Methods of the model that need the whole grid. A pruned model refuses them, unless it has
    #: outputs="grid": then every block returns a tensor of full length (`restore_carrying`), and
    #: the library must pass this very tensor to the next block.
    unserved: ClassVar[tuple[str, ...]] = ()
    #: methods that get tokens without their sizes: refused while the head must pool by size
    unweighed: ClassVar[tuple[str, ...]] = ()
    #: methods that change the number of tokens, which a pruned model refuses
    resizing: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def parts(self, block: nn.Module) -> Parts: ...

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        """Return the modules of a block that are not called while it is pruned; most of their
        submodules are."""
        return ()

    def has_hooks(self, module: nn.Module) -> bool:
        """Return whether a module has hooks that are not the library's."""
        return any(map(self.ending_class.is_users_hook, hooks_on(module)))

    @property
    @abstractmethod
    def name(self) -> str:
        """The library's name of the model with the tag of its weights; "" if it has none."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""

    @property
    def any_size(self) -> bool:
        """Does the model take images of sizes other than `input_shape`?"""
        return False

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of classes; 0 without a classifier."""

    @abstractmethod
    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        """Return the transform from a PIL image to the model's input.

        Args:
            size: The side in pixels; default: that of the model.
        """

    @property
    @abstractmethod
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        """The mean and standard deviation by which the transform normalizes each channel."""

    @abstractmethod
    def class_names(self) -> list[str]:
        """Return the names of the classes, or an empty list if the library does not know them."""

    def under_own_names(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rename published weights to the names that the model has."""
        return state

    def resize_(self, size: int) -> None:
        """Set the model to square images of another size, and resample its positions."""
        raise ValueError(f"{self._label} cannot be set to another size")

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the classifier; an empty list without one."""
        return []

    def reset_head_(self, classes: int) -> None:
        """Give the model a new classifier with random weights."""
        raise ValueError(
            f"{self._label} has {self.outputs} classes and cannot get a classifier for {classes}"
        )

    @property
    def _label(self) -> str:
        return self.name or type(self.model).__name__

    def saving(self, note: Mapping[str, Any]) -> dict[str, functools.partial[Any]]:
        """Return replacements, by name, for methods of a pruned model that save it.

        Args:
            note: How to prune the model again, see `surgery.note_of`.
        """
        return {}

    def giving_tensors(self) -> nn.Module:
        """Return the model, or a wrapper of it, that returns one tensor: logits or features."""
        return self.model

    def ending(
        self, *, prefix_only: bool = False, proportional: float | None = None
    ) -> Ending | None:
        """Return what replaces the model's forward; None to keep it.

        Args:
            prefix_only: As for `Ending`.
            proportional: As for `Ending`.
        """
        if not prefix_only and proportional is None:
            return None
        return self.ending_class(self.model, prefix_only=prefix_only, proportional=proportional)

    def midway(self) -> Callable[[Tensor, int], Tensor] | None:
        """Return a function that runs the model, pruned as it is then, from the input of a block
        (counted from 1) on; None if its blocks need more than tokens."""
        return self._enter

    def _enter(self, x: Tensor, block: int) -> Tensor:
        ending = ending_of(self.model) or self.ending_class(self.model)
        return ending.enter(x, block)


class Reading(NamedTuple):
    """What a vision-language model reads of its tower: one language token for each token."""

    tower: nn.Module
    #: the hidden states that are read: 0 enters the first block, −1 leaves the last
    states: tuple[int, ...]
    left_out: int = 0  # tokens skipped at the start of each
