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

from .attention import Heads, output
from .cost import Geometry
from .graph import Graph, average_attention
from .kernels import Backend, scorer
from .precision import no_autocast
from .schedule import Stage
from .scoring import Scorer
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

    tokens: Tokens
    x_pre: Float[Tensor, "batch tokens width"]  # the block's input
    heads: list[Heads]
    graph: Graph | None  # where the method asked for it
    geometry: Geometry
    scorer: Scorer = Scorer()

    @property
    def prefix(self) -> int:
        return self.geometry.prefix

    @property
    def patches(self) -> int:
        return self.tokens.source.shape[1]

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
        """Does it look at the attention graph at this stage?"""
        return False

    def wants_history(self) -> bool:
        """Does it look at the attention received in all blocks so far?"""
        return False

    def reads_output(self) -> bool:
        """Does it look at what the block's MLP has made? Else that is made of kept tokens only."""
        return False

    @abstractmethod
    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        """Decide which patch tokens stay."""

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Multiply-accumulates of the decision itself, for one picture."""
        return 0


#: A CPU scores so many pictures at a time: their graphs stay in its cache, and their memory is
#: small. A picture's result does not depend on its batch, so nothing else changes.
AT_ONCE = 8


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
    """One block: attention, MLP, and at its end the stage, if it has one.

    `given` is whatever else the library handed to the block (positions, masks).
    """
    tokens = Tokens.of(x, task.geometry.prefix)
    score = task.stage is not None and task.method.wants_graph(task.stage)
    if score and tokens.x.device.type == "cpu" and not torch.compiler.is_compiling():
        starts = range(0, len(tokens.x), AT_ONCE)
        turns = [pictures(tokens, slice(at, at + AT_ONCE)) for at in starts]
        out: Tensor | Tokens = together([_run(parts, task, turn, given, score) for turn in turns])
        return out
    return _run(parts, task, tokens, given, score)


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


def _run(
    parts: Parts, task: Task, tokens: Tokens, given: dict[str, Any], score: bool
) -> Tensor | Tokens:
    seen = _attend(parts, task, tokens, given, score)
    if task.early:
        now = _staged(task, seen)
        del seen  # q, k and v need not wait for the MLP, which is what takes most memory
        now = now._replace(x=parts.feed(now.x))
    else:
        fed = parts.feed(seen.tokens.x)
        now = _staged(task, seen._replace(tokens=seen.tokens._replace(x=fed)))
    return now.x if task.last else now


def _attend(parts: Parts, task: Task, tokens: Tokens, given: dict[str, Any], score: bool) -> Seen:
    """The block's attention: the tokens after it, and what there was to see on the way."""
    heads = _biased(parts.attend(tokens, given), tokens, task.method)
    who, graph = Scorer(), None
    if score or task.remember:
        who = scorer(task.backend, heads)
        outputs, graph = who.attention(heads)
    else:
        outputs = [output(part) for part in heads]
    now = tokens._replace(x=parts.join(tokens.x, heads, outputs), reduction=None)
    if task.remember:
        now = now._replace(history=_remembered(tokens, graph, task.geometry.prefix))
    return Seen(now, tokens.x, heads, graph, task.geometry, who)


def _staged(task: Task, seen: Seen) -> Tokens:
    """The tokens that the block's stage leaves, if it has one."""
    if task.stage is None:
        return seen.tokens
    with torch.no_grad(), no_autocast(seen.tokens.x):
        task.method.check(task.stage, seen.patches, task.geometry)
        reduction = task.method.reduce(seen, task.stage)
    return reduced(seen.tokens, reduction, seen.prefix)


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
