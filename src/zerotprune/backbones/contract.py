"""The contract of a library: what a Backbone tells of its models, how their blocks are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..cost import Geometry
from ..task import Parts
from ..tokens import Tokens
from .midway import Midway
from .prefix_only import PrefixOnly
from .size_weighted import SizeWeighted
from .stand_in import StandIn


class BlockCall:
    """How a model calls its blocks: this one by x and keywords. All want x alone back."""

    def read(
        self, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        """The residual stream, and what else the parts may need of the call."""
        (x,) = args
        return x, dict(given)


@dataclass(frozen=True, eq=False)
class Backbone(ABC):
    """A model, seen as a row of blocks."""

    model: nn.Module
    geometry: Geometry
    blocks: Sequence[nn.Module]

    call: ClassVar[BlockCall] = BlockCall()
    #: methods of the model that want the whole grid: they cannot serve while it is pruned, unless
    #: with outputs="grid", where every block gives a full-length tensor (`grid.carrying`); for that
    #: the library must hand each block the very tensor that the one before gave
    unserved: ClassVar[tuple[str, ...]] = ()
    #: those that cannot serve while the head must pool by size: they get tokens without their sizes
    unweighed: ClassVar[tuple[str, ...]] = ()
    #: the library's modules whose hooks see what they should: they record what leaves the blocks
    recorders: ClassVar[tuple[str, ...]] = ()
    #: those that change the number of tokens, which a schedule was worked out for
    resizing: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def parts(self, block: nn.Module) -> Parts: ...

    def bypassed(self, block: nn.Module) -> Sequence[nn.Module]:
        """The modules of a block that are not called while it is pruned: their parts are."""
        return ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The library's own name of the model with the tag of its weights; "" if it has none."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many classes the head tells apart; 0 where there is no head."""

    @abstractmethod
    def transform(self, size: int | None = None) -> Callable[[Any], Tensor]:
        """What makes a PIL image the model's input, at `size` pixels or the size it has now."""

    @property
    @abstractmethod
    def normalization(self) -> tuple[Sequence[float], Sequence[float]]:
        """Mean and standard deviation of each channel, which the transform takes out."""

    @abstractmethod
    def class_names(self) -> list[str]:
        """What the classes are called, as far as the library knows."""

    def under_own_names(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights as the library publishes them, under the names that they have in the model."""
        return state

    def resize_(self, size: int) -> None:
        """Set the model to square images of another size: positions are resampled."""
        raise ValueError(f"{self.name or type(self.model).__name__} cannot be set to another size")

    def head_parameters(self) -> list[nn.Parameter]:
        """The weights that make classes of features; none where the model has no such head."""
        return []

    def reset_head_(self, classes: int) -> None:
        """Give the model a new head for so many classes, with random weights."""
        raise ValueError(
            f"{self.name or type(self.model).__name__} cannot be given a head for {classes} "
            f"classes: it has {self.outputs}"
        )

    def giving_tensors(self) -> nn.Module:
        """The model, or a wrapping of it, that answers with one tensor: logits, or features."""
        return self.model

    @abstractmethod
    def prefix_only(self, otherwise: SizeWeighted | None = None) -> PrefixOnly:
        """What stands in for the model's forward where its head reads the prefix tokens alone, and
        what else once its head was changed."""

    def size_weighted(self, proportional: float) -> SizeWeighted | None:
        """What stands in for the model's forward where its head pools tokens of different sizes,
        or padding; None where it never does, see `Geometry.weighs_sizes`."""
        return None

    def checked(self) -> StandIn | None:
        """What stands in for the model's forward where nothing else does, to refuse calls that a
        pruned model cannot serve; None where there are none."""
        return None

    @abstractmethod
    def midway(self) -> Midway | None:
        """How the model is run from the middle; None where its blocks need more than tokens."""
