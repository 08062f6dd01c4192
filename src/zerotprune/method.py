"""The socket for methods: what a method is shown, what it decides, and how it is registered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .cost import Geometry
from .knobs import Dial, paper_form
from .schedule import Stage
from .scoring.attention import Heads, Rows
from .scoring.graph import ColumnGraph, Graph, RowGraph
from .scoring.scorer import REFERENCE, Scorer
from .shapes import Float
from .tokens import Reduction, Tokens


class Seen(NamedTuple):
    """What a block saw, shown to a method."""

    tokens: Tokens  # as they are when the method decides, see `Method.decides_after`
    x_pre: Float[Tensor, "batch tokens width"]  # the block's input
    heads: list[Heads]
    graph: Graph | None  # where the method asked for it
    geometry: Geometry
    scorer: Scorer = REFERENCE
    columns: ColumnGraph | None = None  # where the method asked for them, or for the graph
    weights: nn.Module | None = None  # the method's own at this stage, see `Method.new_weights`

    @property
    def prefix(self) -> int:
        return self.geometry.prefix

    @property
    def patches(self) -> int:
        return self.tokens.source.shape[1]

    @property
    def rows(self) -> RowGraph:
        """For methods that want single rows of the graph: fused attention gives no other."""
        held = self.columns if self.graph is None else self.graph
        return Rows(self.heads) if held is None else held

    def vectors(
        self, name: Literal["key", "query", "value"]
    ) -> Float[Tensor, "batch heads tokens width"]:
        """One kind of the attention's vectors, of all heads."""
        parts = [_content(heads, name) for heads in self.heads]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def feature(self, name: Literal["key", "query", "value"]) -> Float[Tensor, "batch tokens w"]:
        """The same with heads concatenated."""
        return self.vectors(name).transpose(1, 2).flatten(2)


def _content(heads: Heads, name: str) -> Tensor:
    """Likeness is about content: where a rotary position turned a vector, take it unturned."""
    if name == "value":
        return heads.v
    plain, turned = (heads.plain_q, heads.q) if name == "query" else (heads.plain_k, heads.k)
    return turned if plain is None else plain


#: every registered method by its name
REGISTERED: dict[str, type[Method]] = {}

Part = Literal["attention", "projection", "mlp"]  # of a block, in the order in which they run


class Method(ABC):
    """The socket for everything that reduces tokens. Must be hashable, picklable, free of state.

    A subclass that has a `name` is registered by being defined: every command, the page and every
    file of a schedule know it from then on. Its options are the fields of a frozen dataclass.

    The defaults are those of a method that keeps as many tokens as Zero-TPrune would at the same
    stage, at the end of a block, and looks at nothing.

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
    #: where it acts: at the end of a block, or between its attention and its MLP
    acts: ClassVar[Literal["end", "middle"]] = "end"
    #: are similar tokens merged with their partners, not dropped?
    merges: ClassVar[bool] = False
    #: is there one token more for the sum of what is dropped?
    fuses: ClassVar[bool] = False
    #: do images keep different numbers of tokens? Then the cost must be measured.
    adaptive: ClassVar[bool] = False
    #: what a search draws: a few stages with their keep, similar and rounds; or the counts, which
    #: are the `similar` of each block; None: it has nothing to search
    searchable: ClassVar[Literal["stages", "counts"] | None] = "stages"
    #: to which power of the patches in it does attention go to a merged token? 1, or True, is in
    #: proportion; 0, or False, takes it for a single patch
    proportional: float = 1.0

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "name" in cls.__dict__:
            _register(cls)

    def dials(self, geometry: Geometry) -> Iterable[Dial]:
        """The ways to set it to a budget, the usual one first."""
        return paper_form(geometry, self)

    def kept(self, stage: Stage, patches: int) -> int:
        """How many of so many patch tokens it keeps: known before any image is seen."""
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
        """Up to where the block must have come before it can decide: q, k, v and their graph; the
        tokens after attention; or the tokens after the MLP."""
        return "attention"

    def new_weights(self, block: int, geometry: Geometry) -> nn.Module | None:
        """Weights of its own for a stage at this block, as they are before anybody trained them;
        None: it has none. They lie on the model, beside its own, see `learned`."""
        return None

    @abstractmethod
    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        """Decide which patch tokens stay."""

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Multiply-accumulates of the decision itself, for one image."""
        return 0


def _register(method: type[Method]) -> None:
    for name in (method.name, *method.variants):
        held = REGISTERED.get(name)
        if held is not None and held.__qualname__ != method.__qualname__:
            raise ValueError(f"two methods are called {name!r}: {held.__name__}, {method.__name__}")
        REGISTERED[name] = method
