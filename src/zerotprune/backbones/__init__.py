"""Backbones: all that anybody wants to know of a library's Vision Transformer, and how it comes
vit. A library is imported only when one of its models is at hand or is asked for by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from ..block import Parts
from ..cost import Geometry
from ..tokens import Tokens
from .midway import Midway
from .prefix_only import PrefixOnly
from .reading import Reading
from .size_weighted import SizeWeighted
from .stand_in import StandIn


class Library(NamedTuple):
    """Where a library's models are defined, what their names begin with on the command line, and
    where we define some ourselves, if we do."""

    module: str
    prefix: str = ""
    ours: str | None = None


#: our package for each library
LIBRARIES: dict[str, Library] = {
    "timm": Library("timm"),
    "torchvision": Library("torchvision", "torchvision:"),
    "open_clip": Library("open_clip", "open_clip:"),
    "lvvit": Library("tlt", "lvvit:", f"{__name__}.lvvit.model"),
    "transformers": Library("transformers", "hf:"),
}


class BlockCall:
    """How a model calls its blocks, and what it wants back. This one: x and keywords, for x."""

    def read(
        self, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> tuple[Tensor | Tokens, dict[str, Any]]:
        """The residual stream, and what else the parts may need of the call."""
        (x,) = args
        return x, dict(given)

    def give(self, x: Tensor | Tokens) -> Any:
        """What the block hands back."""
        return x

    def given(self, out: Any) -> Tensor | Tokens:
        """The residual stream in what a block handed back."""
        stream: Tensor | Tokens = out
        return stream


@dataclass(frozen=True, eq=False)
class Backbone(ABC):
    """A model, seen as a row of blocks."""

    model: nn.Module
    geometry: Geometry
    blocks: Sequence[nn.Module]

    call: ClassVar[BlockCall] = BlockCall()
    #: methods of the model that want the whole grid: they cannot serve while it is pruned, unless
    #: with outputs="grid", where every block gives a full-length tensor (`grid.carrying`). Of a
    #: library that asks nothing but to hand each block the very tensor that the last one gave.
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


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `DistributedDataParallel`, `DataParallel` or `torch.compile`."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def transformer(model: nn.Module) -> nn.Module:
    """The Vision Transformer itself: without wrappers, and out of an `nn.Sequential` that has one,
    which calls it and does nothing else to it, or out of a model of its library's that holds it."""
    model = unwrap(model)
    if type(model) is nn.Sequential:
        supported = [child for child in model if _home(child) is not None]
        if len(supported) == 1:
            return transformer(supported[0])
    home = _home(model)
    # Some libraries' models hold the transformer inside.
    tower = None if home is None else getattr(import_module(f".{home}", __name__), "tower", None)
    inner = model if tower is None else tower(model)
    return model if inner is model else transformer(inner)


def backbone(model: object) -> Backbone:
    """Take a model apart, or say in one sentence why it cannot be pruned."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {type(model).__name__}")
    model = transformer(model)
    home = _home(model)
    if home is None:
        raise TypeError(f"cannot prune {type(model).__name__}: {_advice(model)}")
    vit: Backbone = import_module(f".{home}", __name__).take_apart(model)
    return vit


def reading(model: object) -> Reading:
    """What a vision-language model reads of its tower, or why that is not known."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    home = _home(model)
    read = None if home is None else getattr(import_module(f".{home}", __name__), "reading", None)
    if read is None:
        raise TypeError(
            f"{type(model).__name__} is not a vision-language model that is known to the library"
        )
    found: Reading = read(model)
    return found


def _home(model: nn.Module) -> str | None:
    """Our package for the library that the model's class, or one it inherits from, is of."""
    for kind in type(model).__mro__:
        defined = kind.__module__.partition(".")[0]
        for home, library in LIBRARIES.items():
            if defined == library.module or kind.__module__ == library.ours:
                return home
    return None


def _advice(model: nn.Module) -> str:
    held = [f"a {_home(each)} {type(each).__name__} at .{path}" for path, each in _prunable(model)]
    if held:
        path = held[0].rpartition(" at ")[2]
        return f"it holds {' and '.join(held)}: pass model{path}"
    library = type(model).__module__.partition(".")[0]
    return f"it is {library}'s, and not a Vision Transformer of {' or '.join(LIBRARIES)}"


def _prunable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules inside that could be pruned by themselves."""
    for path, held in model.named_modules():
        home = _home(held)
        if path and home is not None:
            try:
                import_module(f".{home}", __name__).take_apart(held)
            except (TypeError, AttributeError):
                continue
            yield path, held


def create(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """A model by its name on the command line: a prefix of the library's, then the library's own
    name for it. Options that are None leave what the library does by itself."""
    home, own = _named(name)
    make = home.create
    given = {option: value for option, value in options.items() if value is not None}
    foreign = sorted(given.keys() - inspect.signature(make).parameters.keys())
    if foreign:
        raise ValueError(f"--{foreign[0]} is nothing that {name} could be given")
    model: nn.Module = make(own, pretrained, **given)
    return model


def shape_in(name: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """How the model of that name is to be made so that it takes these weights, as far as its
    library's package can tell: `create` takes it as options."""
    read = getattr(_named(name)[0], "shape_in", None)
    return {} if read is None else dict(read(state))


def own_weights(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the weights in a file, those of the model of that name: a file may hold more towers."""
    choose = getattr(_named(name)[0], "own_weights", None)
    return dict(state if choose is None else choose(state))


def _named(name: str) -> tuple[ModuleType, str]:
    """Our package for the library that a name on the command line means, and its own name."""
    prefix, colon, own = name.rpartition(":")
    for home, library in LIBRARIES.items():
        if library.prefix == prefix + colon:
            return import_module(f".{home}", __name__), own
    prefixes = ", ".join(library.prefix for library in LIBRARIES.values() if library.prefix)
    raise ValueError(
        f"unknown model {name!r}: give 'demo' or the name of a timm model"
        + (f", or one with a prefix ({prefixes})" if prefixes else "")
    )
