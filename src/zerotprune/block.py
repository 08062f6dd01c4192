"""Run one Transformer block with a token reduction in it, from the block's parts.

Here stand the three contracts that everything else plugs into: `Parts` (how a library's block
comes apart), `Method` (which tokens to keep), and `Task` (what one block has to do).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from .cost import Geometry
from .schedule import Stage
from .scoring.attention import Heads, Rows, output
from .scoring.backends import Backend, scorer
from .scoring.graph import Graph, RowGraph, average_attention
from .scoring.precision import no_autocast
from .scoring.scorer import REFERENCE, Scorer
from .shapes import Float
from .tokens import Reduction, Tokens, pictures, reduced, together


@runtime_checkable
class Parts(Protocol):
    """A library's block, taken apart. Putting the parts together again gives the block, bit for
    bit in float32."""

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        """Norm, projections, q/k norm and positions of each attention in the block.

        With `queries`, only so many prefix tokens ask: keys and values are those of all tokens.
        """

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        """The residual stream of the tokens that asked, after attention: projection, layer scale,
        drop path, sum."""

    def feed(self, x: Tensor) -> Tensor:
        """The residual stream after the MLP."""


class Seen(NamedTuple):
    """What a block saw, shown to a method."""

    tokens: Tokens  # as they are when the method decides, see `Method.waits_for`
    x_pre: Float[Tensor, "batch tokens width"]  # the block's input
    heads: list[Heads]
    graph: Graph | None  # where the method asked for it
    geometry: Geometry
    scorer: Scorer = REFERENCE

    @property
    def prefix(self) -> int:
        return self.geometry.prefix

    @property
    def patches(self) -> int:
        return self.tokens.source.shape[1]

    @property
    def rows(self) -> RowGraph:
        """For methods that want single rows of the graph: fused attention gives no other."""
        return Rows(self.heads) if self.graph is None else self.graph

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


class Method(ABC):
    """The socket for everything that reduces tokens. Must be hashable, picklable, free of state.

    The defaults are those of a method that keeps as many tokens as Zero-TPrune would at the same
    stage, at the end of a block, and looks at nothing.
    """

    #: where it acts: at the end of a block, or between its attention and its MLP
    place: ClassVar[Literal["end", "middle"]] = "end"
    #: do pictures keep different numbers of tokens? Then the cost must be measured.
    adaptive: ClassVar[bool] = False
    #: does attention go to a merged token in proportion to the patches in it?
    proportional: bool = True

    def kept(self, stage: Stage, patches: int) -> int:
        """How many of so many patch tokens it keeps: known before any picture is seen."""
        return stage.kept(patches)

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:  # noqa: B027
        """Raise ValueError if the stage asks for what the method cannot do."""

    def wants_graph(self, stage: Stage) -> bool:
        """Does it look at the whole attention graph at this stage?"""
        return False

    def wants_history(self) -> bool:
        """Does it look at the attention received in all blocks so far?"""
        return False

    def waits_for(self) -> Literal["attention", "projection", "mlp"]:
        """Up to where the block must have come before it can decide: q, k, v and their graph; the
        tokens after attention; or the tokens after the MLP."""
        return "attention"

    @abstractmethod
    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        """Decide which patch tokens stay."""

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Multiply-accumulates of the decision itself, for one picture."""
        return 0


#: A CPU scores so many pictures at a time: their graphs stay in its cache, and their memory is
#: small. A picture's result does not depend on its batch, so nothing else changes.
AT_ONCE = 4


@dataclass(frozen=True)
class Task:
    """What one block has to do in a pruned model."""

    method: Method
    stage: Stage | None  # None: only pass the tokens on
    geometry: Geometry
    last: bool  # hands back a plain tensor
    early: bool = False  # the stage comes before the MLP, which then sees no dropped token
    remember: bool = False  # add this block's attention to the tokens' history
    backend: Backend = "auto"


def run(parts: Parts, task: Task, x: Tensor | Tokens, given: dict[str, Any]) -> Tensor | Tokens:
    """One block: attention, MLP, and its stage, if it has one.

    `given` is whatever else the library handed to the block (positions, masks).
    """
    prefix = task.geometry.prefix
    tokens = Tokens.of(x, prefix)
    sight, outputs, reduction = _attended(parts, task, tokens, given)
    now = sight.tokens._replace(x=parts.join(tokens.x, sight.heads, outputs), reduction=None)
    ripe = task.stage is None or reduction is not None
    if task.stage is not None and not ripe and task.method.waits_for() == "projection":
        reduction, ripe = _decided(task, task.stage, sight._replace(tokens=now)), True
    del outputs
    if ripe:
        del sight  # q, k and v need not wait for the MLP, which takes most memory
    if reduction is not None and task.early:
        now = reduced(now, reduction, prefix)
    now = now._replace(x=parts.feed(now.x))
    if task.stage is not None and not ripe:
        reduction = _decided(task, task.stage, sight._replace(tokens=now))
    if reduction is not None and not task.early:
        now = reduced(now, reduction, prefix)
    return now.x if task.last else now


def run_for_prefix(parts: Parts, task: Task, x: Tensor | Tokens, given: dict[str, Any]) -> Tensor:
    """The last block for a head that reads the prefix tokens alone: what becomes of them, and of
    no other token. They attend to all tokens as ever, so for them nothing changes.

    A stage in this block is left out: even between attention and MLP, it would choose among patch
    tokens that no attention sees any more. So is the history, which only later stages read.
    """
    prefix = task.geometry.prefix
    tokens = Tokens.of(x, prefix)
    heads = _biased(parts.attend(tokens, given, prefix), tokens, task.method)
    outputs = [output(part) for part in heads]
    return parts.feed(parts.join(tokens.x[:, :prefix], heads, outputs))


def _attended(
    parts: Parts, task: Task, tokens: Tokens, given: dict[str, Any]
) -> tuple[Seen, list[Tensor], Reduction | None]:
    """The block's attention: what was to be seen, its outputs, and the decision if it is ripe."""
    heads = _biased(parts.attend(tokens, given), tokens, task.method)
    sight = Seen(tokens, tokens.x, heads, None, task.geometry, REFERENCE)
    if task.stage is None and not task.remember:
        return sight, [output(part) for part in heads], None
    whole = len(tokens.x) <= AT_ONCE or tokens.x.device.type != "cpu" or not _needs_graph(task)
    if whole or torch.compiler.is_compiling() or task.method.waits_for() != "attention":
        return _scored(task, sight)
    starts = range(0, len(tokens.x), AT_ONCE)
    turns = [_scored(task, _some(sight, slice(at, at + AT_ONCE))) for at in starts]
    history = together([turn[0].tokens.history for turn in turns])
    outputs = [torch.cat(parts_of) for parts_of in zip(*(turn[1] for turn in turns), strict=True)]
    reduction: Reduction | None = together([turn[2] for turn in turns])
    return sight._replace(tokens=tokens._replace(history=history)), outputs, reduction


def _some(sight: Seen, which: slice) -> Seen:
    """What was to be seen of some pictures."""
    return sight._replace(
        tokens=pictures(sight.tokens, which),
        x_pre=sight.x_pre[which],
        heads=[part.pictures(which) for part in sight.heads],
    )


def _scored(task: Task, sight: Seen) -> tuple[Seen, list[Tensor], Reduction | None]:
    sight = sight._replace(scorer=scorer(task.backend, sight.heads))
    if _needs_graph(task):
        outputs, graph = sight.scorer.attention(sight.heads)
        sight = sight._replace(graph=graph)
    else:
        outputs = [output(part) for part in sight.heads]
    if task.remember:
        history = _remembered(sight.tokens, sight.graph, sight.prefix)
        sight = sight._replace(tokens=sight.tokens._replace(history=history))
    if task.stage is None or task.method.waits_for() != "attention":
        return sight, outputs, None
    return sight, outputs, _decided(task, task.stage, sight)


def _needs_graph(task: Task) -> bool:
    return task.remember or (task.stage is not None and task.method.wants_graph(task.stage))


def _decided(task: Task, stage: Stage, seen: Seen) -> Reduction:
    """What the block's stage makes of its tokens."""
    with torch.no_grad(), no_autocast(seen.tokens.x):
        task.method.check(stage, seen.patches, task.geometry)
        return task.method.reduce(seen, stage)


def _remembered(tokens: Tokens, graph: Graph | None, prefix: int) -> Tensor:
    assert graph is not None
    with torch.no_grad(), no_autocast(tokens.x):
        received = average_attention(graph)[:, prefix:]
    return received if tokens.history is None else tokens.history + received


def _biased(heads: list[Heads], tokens: Tokens, method: Method) -> list[Heads]:
    """The heads with what the tokens' sizes and their padding add to the logits of attention."""
    bias = None
    if tokens.size is not None and method.proportional:
        bias = tokens.size.log()
    if tokens.alive is not None:
        base = torch.zeros_like(tokens.alive, dtype=torch.float32) if bias is None else bias
        bias = base.masked_fill(~tokens.alive, -torch.inf)
    if bias is None:
        return heads
    return [part.biased(bias[:, None, None]) for part in heads]
