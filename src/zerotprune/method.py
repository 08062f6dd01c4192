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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor, nn

from .cost import Geometry
from .registry import LOADERS
from .safety.ranges import checked_kind
from .scoring.attention import Heads, Rows
from .scoring.graph import ColumnGraph, Graph, RowGraph
from .scoring.scorer import REFERENCE, Scorer
from .shapes import Float
from .tokens import Reduction, Tokens

if TYPE_CHECKING:
    from .dials import Dial
    from .schedule import Stage

#: a part of a block, in the order in which they run
Part = Literal["attention", "projection", "mlp"]


class Seen(NamedTuple):
    """What a method sees of a block."""

    tokens: Tokens  # when the method decides, see `Method.decides_after`
    x_pre: Float[Tensor, "batch tokens width"]  # the block's input
    heads: list[Heads]
    graph: Graph | None  # if the method wants it
    geometry: Geometry
    scorer: Scorer = REFERENCE
    columns: ColumnGraph | None = None  # if the method wants them, or the graph

    @property
    def prefix(self) -> int:
        return self.geometry.prefix

    @property
    def patches(self) -> int:
        return self.tokens.source.shape[1]

    @property
    def rows(self) -> RowGraph:
        """Single rows of the graph, which are there without asking."""
        computed = self.columns if self.graph is None else self.graph
        return Rows(self.heads) if computed is None else computed

    def vectors(
        self, name: Literal["key", "query", "value"]
    ) -> Float[Tensor, "batch heads tokens width"]:
        """Return the keys, queries or values of all heads, without rotary positions."""
        vectors = [_plain(attn, name) for attn in self.heads]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)

    def feature(self, name: Literal["key", "query", "value"]) -> Float[Tensor, "batch tokens w"]:
        """Return `vectors` with heads concatenated."""
        return self.vectors(name).transpose(1, 2).flatten(2)


def _plain(attn: Heads, name: str) -> Tensor:
    if name == "value":
        return attn.v
    plain, rotated = (attn.plain_q, attn.q) if name == "query" else (attn.plain_k, attn.k)
    return rotated if plain is None else plain


class Method(ABC):
    """Base class of all methods. A method must be hashable, picklable and stateless.

    Defining a subclass with a `name` registers it for every command, the page and schedule files.
    Its options are the fields of a frozen dataclass, checked by their types.

    By default a method keeps as many tokens as Zero-TPrune would at the same stage, acts at the end
    of a block, and needs nothing of its attention.

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

    #: its name on the command line, in JSON and in tables
    name: ClassVar[str]
    #: other names, and the options that each stands for
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: where it acts: at the end of a block, between its attention and its MLP, or before both. Then
    #: it decides by the attention of all tokens, which is merged with them, not computed again.
    acts: ClassVar[Literal["start", "middle", "end"]] = "end"
    #: are similar tokens merged into their partners, instead of dropped?
    merges: ClassVar[bool] = False
    #: is there one extra token, a weighted sum of the dropped ones?
    fuses: bool = False
    #: does the number of kept tokens depend on the image? Then the cost must be measured.
    adaptive: ClassVar[bool] = False
    #: what a search varies: "stages" (keep, similar and rounds of a few stages), "counts" (the
    #: `similar` of each block), or None
    searchable: ClassVar[Literal["stages", "counts"] | None] = "stages"
    #: Attention to a token is proportional to this power of its size. 1 (or True) counts every
    #: patch in it, 0 (or False) counts it as one patch.
    proportional: float = 1.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            _register(cls)

    def __post_init__(self) -> None:
        """Check the options of a dataclass by their types."""
        for option, (kind, default) in _option_kinds(type(self)).items():
            value = getattr(self, option)
            if value is not default:
                label = f"{option!r} of {getattr(self, 'name', type(self).__name__)}"
                object.__setattr__(self, option, checked_kind(label, value, kind))

    def dials(self, geometry: Geometry) -> Iterable[Dial] | None:
        """Return ways to set the method to a budget, the preferred one first; None for the paper's
        form of a schedule (`dials.paper_form`)."""
        return None

    def kept(self, stage: Stage, patches: int) -> int:
        """Return how many of `patches` tokens a stage keeps; at most, for an adaptive method."""
        return stage.kept(patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:  # noqa: B027
        """Raise ValueError if the method cannot do what the stage asks for."""

    def wants_graph(self, stage: Stage) -> bool:
        """Return whether it needs the whole attention graph at this stage."""
        return False

    def wants_columns(self, stage: Stage) -> bool:
        """Return whether it needs the attention that each token receives, averaged over heads.
        Fused attention gives that, and the row of CLS, without the rest of the graph."""
        return False

    def wants_history(self) -> bool:
        """Return whether it needs the attention received in all blocks so far."""
        return False

    def decides_after(self) -> Part:
        """Return the part of a block that must run before the method can decide: attention (q, k, v
        and their graph), projection (the residual stream after attention), or mlp."""
        return "attention"

    @abstractmethod
    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        """Decide which patch tokens stay, and what happens to the others.

        Args:
            seen: The tokens, their attention, and the scorer to use.
            stage: What the schedule asks for.
        """

    def read(self, tokens: Tokens, prefix: int) -> Float[Tensor, "batch tokens width"]:
        """Return what the head reads after the last block."""
        return tokens.x

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Return the MACs of the decision itself, for one image."""
        return 0

    def spared_macs(self, stage: Stage, patches: int, kept: int, geometry: Geometry) -> int:
        """Return the MACs of the block that the published method saves on dropped tokens, for one
        image. Here they run, but a budget does not count them."""
        return 0

    def bind(self, model: nn.Module, blocks: Collection[int], geometry: Geometry) -> Method:
        """Return the method for this model, with stages at `blocks`, and leave the model as it is.

        For methods that depend on the geometry, or that have weights, which are on the model.
        """
        return self

    def put_on(self, model: nn.Module) -> None:  # noqa: B027
        """Put what `bind` made on the model; called when it is pruned by this method."""

    def take_off(self, model: nn.Module) -> None:  # noqa: B027
        """Undo `put_on`; called when the model is restored or pruned by another method."""


@cache
def _option_kinds(method: type[Method]) -> dict[str, tuple[Any, Any]]:
    """Return the declared type of each option, if they can be resolved, and its default."""
    try:
        kinds = get_type_hints(method)
    except Exception:  # a user's types, such as those of a class in a function
        return {}
    options = [option for option in fields(method) if option.init]  # type: ignore[arg-type]
    return {option.name: (kinds[option.name], option.default) for option in options}


#: every registered method by name
REGISTERED: dict[str, type[Method]] = {}
#: the entry-point group of methods that are imported on demand, from this and other packages
PLUGINS = "zerotprune.methods"


def _register(method: type[Method]) -> None:
    inherited = {name for base in method.__mro__[1:] for name in getattr(base, "variants", {})}
    variants = method.__dict__.get("variants", {})
    if inherited and not variants:  # the variants of a base stay its own
        method.variants = {}
    for name in (method.name, *variants):
        other = REGISTERED.get(name)
        if other is not None and other.__qualname__ != method.__qualname__:
            raise ValueError(f"two methods are named {name!r}: {other.__name__}, {method.__name__}")
        REGISTERED[name] = method


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=PLUGINS)}


def _load() -> None:
    """Let every loader import its methods, which registers them."""
    for load in LOADERS:
        load()


def _class_named(name: str) -> type[Method] | None:
    if name not in REGISTERED:
        _load()
    if name not in REGISTERED and name in _plugins():
        _plugins()[name].load()  # defining the class registers it
    return REGISTERED.get(name)


def names() -> list[str]:
    """Return the names of all methods and variants."""
    _load()
    registered = {
        name: None
        for name, kind in REGISTERED.items()
        if name != kind.name or not _has_default_variant(kind)
    }
    return list(registered | dict.fromkeys(_plugins()))


def _has_default_variant(kind: type[Method]) -> bool:
    """Return whether a variant stands for the defaults of the class."""
    return any(kind(**options) == kind() for options in kind.variants.values())


def resolve(method: object) -> Method:
    """Return a method as it is, by its name, or from a file.

    Args:
        method: A method, the name of one, or `FILE.py:CLASS`.

    >>> import zerotprune as ztp
    >>> ztp.methods.resolve("tome-uni")
    ToMe(proportional=False, inflect=None)
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"expected a method, got the class {method.__name__}: call it first")
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
    """Import a user's method under the name of its file, so that worker processes can too."""
    file, _, name = text.rpartition(":")
    path = Path(os.path.realpath(file))
    if not path.is_file():
        raise ValueError(f"cannot load the method {name}: no file {file}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        module = import_module(path.stem)
    except Exception as error:  # a user's file may fail in any way
        raise ValueError(f"cannot import {file}: {type(error).__name__}: {error}") from None
    if os.path.realpath(str(module.__file__)) != str(path):
        raise ValueError(f"{path.name} has the name of an installed module: rename the file")
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"{file} has no method {name}: expected a subclass of zerotprune.Method")
    return kind()


def name_of(method: Method) -> str:
    """Return the name of the variant that equals the method, or else that of its class."""
    kind = type(method)
    for name, options in kind.variants.items():
        if kind(**options) == method:
            return name
    return getattr(kind, "name", kind.__name__)


def to_data(method: Method) -> dict[str, Any]:
    """Return the method as JSON data: its name, and the options that are not the default."""
    kind: Any = type(method)
    defaults = kind()
    options = {
        option.name: getattr(method, option.name)
        for option in fields(kind)
        if getattr(method, option.name) != getattr(defaults, option.name)
    }
    return {"name": _written_name(kind), "options": options}


def _written_name(kind: type[Method]) -> str:
    """Return the name of a method in JSON: the registered one, or `FILE.py:CLASS` for a user's
    class."""
    name = str(getattr(kind, "name", kind.__name__))
    if kind.__module__.partition(".")[0] == __package__ or name in _plugins():
        return name
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    at_top = kind.__qualname__ == kind.__name__  # else it cannot be imported by name
    return f"{Path(file).name}:{kind.__name__}" if at_top and file.endswith(".py") else name


class UnnamedMethod(ValueError):  # noqa: N818  it names what the user forgot
    """A data file names a user's method by its file, and the user did not name that file."""


def _users_class(name: str, method: object) -> type[Method]:
    """Return the user's class that a data file calls `FILE.py:CLASS`: that of `method`, or one that
    is already defined. A data file never causes an import of code that it names."""
    defined = [] if method is None else [type(resolve(method))]
    bases: list[type[Method]] = [Method]  # type: ignore[type-abstract]
    while bases:
        subclasses = bases.pop().__subclasses__()
        defined += subclasses
        bases += subclasses
    for kind in defined:
        if _written_name(kind) == name:
            return kind
    raise UnnamedMethod(
        f"the file of the method {name!r} is imported only if you name it: give "
        f"--method PATH/{name}, or in Python method='PATH/{name}'"
    )


def from_data(data: object, method: object = None) -> Method:
    """Return the method that `to_data` wrote.

    Args:
        data: What `to_data` returned.
        method: The user's method that the data names by its file: an object, or `FILE.py:CLASS`.
    """
    if not isinstance(data, Mapping) or set(data) != {"name", "options"}:
        raise ValueError('a method is a JSON object with exactly "name" and "options"')
    name, options = data["name"], data["options"]
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise ValueError('"name" of a method must be a string and "options" a JSON object')
    kind: Any = _users_class(name, method) if ".py:" in name else _class_named(name)
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
        result: Method = kind(**{**kind.variants.get(name, {}), **values})
    except TypeError as error:
        raise ValueError(f"invalid options for {name}: {error}") from None
    return result
