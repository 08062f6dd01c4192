"""The socket for methods: what a method sees, what it decides, and the registry of all methods."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .cost import Geometry
from .scoring.attention import Heads, Rows
from .scoring.graph import ColumnGraph, Graph, RowGraph
from .scoring.scorer import REFERENCE, Scorer
from .shapes import Float
from .tokens import Reduction, Tokens

if TYPE_CHECKING:
    from .knobs import Dial
    from .schedule import Stage

Part = Literal["attention", "projection", "mlp"]  # of a block, in the order in which they run


class Seen(NamedTuple):
    """What a block shows to a method."""

    tokens: Tokens  # as they are when the method decides, see `Method.decides_after`
    x_pre: Float[Tensor, "batch tokens width"]  # the block's input
    heads: list[Heads]
    graph: Graph | None  # if the method asked for it
    geometry: Geometry
    scorer: Scorer = REFERENCE
    columns: ColumnGraph | None = None  # if the method asked for them, or for the graph

    @property
    def prefix(self) -> int:
        return self.geometry.prefix

    @property
    def patches(self) -> int:
        return self.tokens.source.shape[1]

    @property
    def rows(self) -> RowGraph:
        """Single rows of the graph, all that fused attention can show."""
        computed = self.columns if self.graph is None else self.graph
        return Rows(self.heads) if computed is None else computed

    def vectors(
        self, name: Literal["key", "query", "value"]
    ) -> Float[Tensor, "batch heads tokens width"]:
        """Return one kind of the attention's vectors, of all heads."""
        parts = [_content(heads, name) for heads in self.heads]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def feature(self, name: Literal["key", "query", "value"]) -> Float[Tensor, "batch tokens w"]:
        """Return the same with heads concatenated."""
        return self.vectors(name).transpose(1, 2).flatten(2)


def _content(heads: Heads, name: str) -> Tensor:
    """Return a vector's content: without its rotary position, where it has one."""
    if name == "value":
        return heads.v
    plain, rotated = (heads.plain_q, heads.q) if name == "query" else (heads.plain_k, heads.k)
    return rotated if plain is None else plain


class Method(ABC):
    """Base class of everything that reduces tokens. Must be hashable, picklable and stateless.

    A subclass with a `name` is registered when it is defined: every command, the page and every
    schedule file know it from then on. Its options are the fields of a frozen dataclass.

    By default a method keeps as many tokens as Zero-TPrune would at the same stage, at the end of
    a block, and looks at nothing.

    >>> from dataclasses import dataclass
    >>> import zerotprune as ztp
    >>> @dataclass(frozen=True)
    ... class FirstOnes(Method):
    ...     name = "first-ones"
    ...     def reduce(self, seen, stage):
    ...         count = self.kept(stage, seen.patches)
    ...         return Reduction(torch.arange(count).expand(len(seen.tokens.x), -1))
    >>> "first-ones" in ztp.methods.names()
    True
    """

    #: on the command line, in JSON and in tables
    name: ClassVar[str]
    #: further names, each with the options that it stands for
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: where it acts: at the end of a block, between its attention and its MLP, or before both: then
    #: it decides by the attention of all tokens, which is merged with them and not computed again
    acts: ClassVar[Literal["start", "middle", "end"]] = "end"
    #: are similar tokens merged with their partners, not dropped?
    merges: ClassVar[bool] = False
    #: is there one extra token, the sum of what is dropped?
    fuses: bool = False
    #: do images keep different numbers of tokens? Then the cost must be measured.
    adaptive: ClassVar[bool] = False
    #: what a search varies: "stages" (keep, similar and rounds of a few stages), "counts" (the
    #: `similar` of each block), or None
    searchable: ClassVar[Literal["stages", "counts"] | None] = "stages"
    #: the power of a merged token's size that attention to it is multiplied by: 1 (or True) is in
    #: proportion, 0 (or False) takes it for a single patch
    proportional: float = 1.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            _register(cls)

    def dials(self, geometry: Geometry) -> Iterable[Dial] | None:
        """Return the ways to set the method to a budget, the usual one first; None for the
        paper's form of a schedule."""
        return None

    def kept(self, stage: Stage, patches: int) -> int:
        """Return how many of `patches` tokens a stage keeps: known before any image is seen."""
        return stage.kept(patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:  # noqa: B027
        """Raise ValueError if the stage asks for what the method cannot do."""

    def wants_graph(self, stage: Stage) -> bool:
        """Does it look at the whole attention graph at this stage?"""
        return False

    def wants_columns(self, stage: Stage) -> bool:
        """Does it look at the attention that each token receives? Fused attention gives that, and
        the row of CLS, without the rest of the graph."""
        return False

    def wants_history(self) -> bool:
        """Does it look at the attention received in all blocks so far?"""
        return False

    def decides_after(self) -> Part:
        """Return the part of a block that must have run before the method can decide: attention
        (q, k, v and their graph), projection (the stream after attention), or mlp."""
        return "attention"

    @abstractmethod
    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        """Decide which patch tokens stay."""

    def read(self, tokens: Tokens, prefix: int) -> Float[Tensor, "batch tokens width"]:
        """Return what the head reads after the last block."""
        return tokens.x

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Return the multiply-accumulates of the decision itself, for one image."""
        return 0

    def spared_macs(self, stage: Stage, patches: int, kept: int, geometry: Geometry) -> int:
        """Return the multiply-accumulates of the block that the published method leaves out for
        tokens that do not stay, for one image. A budget does not count them, though they run."""
        return 0

    def bind(self, model: nn.Module, blocks: Collection[int], geometry: Geometry) -> Method:
        """Return the method that acts in this model, with stages at `blocks`.

        For methods with weights of their own, which lie on the model. Leaves the model as it is.
        """
        return self

    def put_on(self, model: nn.Module) -> None:  # noqa: B027
        """Put what `bind` made on the model; called when the model is pruned by this method."""

    def take_off(self, model: nn.Module) -> None:  # noqa: B027
        """Undo `put_on`; called when the model is restored, or pruned by another method."""


#: every registered method by its name
REGISTERED: dict[str, type[Method]] = {}
#: the packaging group by which installed packages, this one included, add methods that are
#: imported when they are asked for by name
PLUGINS = "zerotprune.methods"


def _register(method: type[Method]) -> None:
    inherited = {name for base in method.__mro__[1:] for name in getattr(base, "variants", {})}
    own = method.__dict__.get("variants", {})
    if inherited and not own:  # the base's further names stay the base's
        method.variants = {}
    for name in (method.name, *own):
        other = REGISTERED.get(name)
        if other is not None and other.__qualname__ != method.__qualname__:
            raise ValueError(f"two methods are named {name!r}: {other.__name__}, {method.__name__}")
        REGISTERED[name] = method


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=PLUGINS)}


def _import_built_in() -> None:
    """Import the methods that come along: whoever asks by name may have imported none."""
    import_module(f"{__package__}.methods")


def _class_named(name: str) -> type[Method] | None:
    if name not in REGISTERED:
        _import_built_in()
    if name not in REGISTERED and name in _plugins():
        _plugins()[name].load()  # defining the class registers it
    return REGISTERED.get(name)


def names() -> list[str]:
    """Return every name that a method can be asked for by."""
    _import_built_in()
    shown = {
        name: None
        for name, kind in REGISTERED.items()
        if name != kind.name or not _named_by_variants(kind)
    }
    return list(shown | dict.fromkeys(_plugins()))


def _named_by_variants(kind: type[Method]) -> bool:
    """Is there a variant that stands for the class's defaults?"""
    return any(kind(**options) == kind() for options in kind.variants.values())


def resolve(method: object) -> Method:
    """Return a method as it is, by its registered name, or by `FILE.py:CLASS`.

    >>> import zerotprune as ztp
    >>> ztp.methods.resolve("tome-uni")
    ToMe(proportional=False, inflect=None)
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"expected an instance, got the class {method.__name__}: call it first")
    if not isinstance(method, str):
        raise TypeError(f"expected a method or its name, got {method!r}: see zerotprune.methods")
    if ".py:" in method:
        return _from_file(method)
    kind = _class_named(method)
    if kind is None:
        raise ValueError(
            f"unknown method {method!r}: expected one of {', '.join(names())}, "
            "or FILE.py:CLASS for your own"
        )
    return kind(**kind.variants.get(method, {}))


def _from_file(text: str) -> Method:
    """Import a user's method by its file's name, so that worker processes can import it too."""
    file, _, name = text.rpartition(":")
    path = Path(os.path.realpath(file))
    if not path.is_file():
        raise ValueError(f"no file {file} to load the method {name} from")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        module = import_module(path.stem)
    except Exception as error:  # a user's file may fail in any way
        raise ValueError(f"cannot import {file}: {type(error).__name__}: {error}") from None
    if os.path.realpath(str(module.__file__)) != str(path):
        raise ValueError(f"{path.name} is also the name of an installed module: rename the file")
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"{file} has no method {name}: expected a subclass of zerotprune.Method")
    return kind()


def name_of(method: Method) -> str:
    """Return the name that stands for the method with its options, else its class's."""
    kind = type(method)
    for name, options in kind.variants.items():
        if kind(**options) == method:
            return name
    return getattr(kind, "name", kind.__name__)


def to_data(method: Method) -> dict[str, Any]:
    """Return the method as JSON has it: its name, and options that differ from the defaults."""
    kind: Any = type(method)
    defaults = kind()
    options = {
        option.name: getattr(method, option.name)
        for option in fields(kind)
        if getattr(method, option.name) != getattr(defaults, option.name)
    }
    return {"name": _written_name(kind), "options": options}


def _written_name(kind: type[Method]) -> str:
    """Return the name of a method in JSON: by which every process knows it, or `FILE.py:CLASS` for
    one of the user's own."""
    name = str(getattr(kind, "name", kind.__name__))
    if kind.__module__.partition(".")[0] == __package__ or name in _plugins():
        return name
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    at_top = kind.__qualname__ == kind.__name__  # else no file gives it back by its name
    return f"{Path(file).name}:{kind.__name__}" if at_top and file.endswith(".py") else name


class UnnamedMethod(ValueError):  # noqa: N818  it is what the user forgot
    """A data file names a method of the user's own, and the user did not."""


def _own_class(name: str, own: object) -> type[Method]:
    """Return the user's class that a data file calls `FILE.py:CLASS`: what the user named again,
    or a class that is defined already. The file is not imported because a data file names it."""
    defined = [] if own is None else [type(resolve(own))]
    bases: list[type[Method]] = [Method]  # type: ignore[type-abstract]
    while bases:
        found = bases.pop().__subclasses__()
        defined += found
        bases += found
    for kind in defined:
        if _written_name(kind) == name:
            return kind
    raise UnnamedMethod(
        f"the method {name!r} is one of your own, and its file is imported only if you name it "
        f"again: give --method PATH/{name}, or in Python method='PATH/{name}'"
    )


def from_data(data: object, own: object = None) -> Method:
    """Return the method that `to_data` wrote.

    Args:
        data: What a data file says of the method.
        own: The user's own method that it names by its file: an object, or `FILE.py:CLASS`.
    """
    if not isinstance(data, Mapping) or set(data) != {"name", "options"}:
        raise ValueError('a method is a JSON object with exactly "name" and "options"')
    name, options = data["name"], data["options"]
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise ValueError('"name" of a method must be a string and "options" a JSON object')
    # A data file cannot name code to run.
    kind: Any = _own_class(name, own) if ".py:" in name else _class_named(name)
    if kind is None:
        raise ValueError(f"unknown method {name!r}: expected one of {', '.join(names())}")
    known = [option.name for option in fields(kind)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"{name} has no option {unknown[0]!r}; its options are {', '.join(known) or 'none'}"
        )
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }
    try:
        made: Method = kind(**{**kind.variants.get(name, {}), **values})
    except TypeError as error:
        raise ValueError(f"bad options for {name}: {error}") from None
    return made
