"""Run one Transformer block with a token reduction in it, from the block's parts.

Here stand the three contracts that everything else plugs into: `Parts` (how a library's block
comes apart), `Method` (which tokens to keep), and `Tokens` (what travels from block to block).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from .cost import Geometry
from .graph import attention_graph, average_attention
from .precision import no_autocast
from .schedule import Stage
from .shapes import Float, Int
from .similarity import take


class Reduction(NamedTuple):
    """What a method decided at one stage; all indices count the patch tokens it was shown."""

    keep: Int[Tensor, "batch kept"]
    importance: Float[Tensor, "batch patches"] | None = None  # of the I-stage
    pre_importance: Float[Tensor, "batch patches"] | None = None  # of the I′-stage
    similar: Int[Tensor, "batch similar"] | None = None  # dropped by the S-stage …
    partner: Int[Tensor, "batch similar"] | None = None  # … for being like this one


class Tokens(NamedTuple):
    """Tokens on their way through the blocks, from the first stage on."""

    x: Float[Tensor, "batch tokens width"]
    source: Int[Tensor, "batch patches"]  # each patch token's place in the original grid
    moved: bool = False  # has a stage been passed, so that the order is no longer the grid's?
    history: Float[Tensor, "batch patches"] | None = None  # attention received in earlier blocks
    reduction: Reduction | None = None  # set on what leaves a stage; nothing reads it but `trace`

    @classmethod
    def of(cls, x: Tensor | Tokens, prefix: int) -> Tokens:
        """Tokens as they are, or a plain tensor's: every patch in its place."""
        if isinstance(x, Tokens):
            return x
        batch, count, _ = x.shape
        return cls(x, torch.arange(count - prefix, device=x.device).expand(batch, -1))


class Heads(NamedTuple):
    """One attention of a block, split by heads and ready for the product of q and k."""

    q: Float[Tensor, "batch heads tokens qk_width"]
    k: Float[Tensor, "batch heads tokens qk_width"]
    v: Float[Tensor, "batch heads tokens width"]
    scale: float
    fused: bool  # does the library use fused attention here?
    dropout: float  # 0 outside training
    bias: Float[Tensor, "*any tokens tokens"] | None = None
    plain_q: Float[Tensor, "batch heads tokens qk_width"] | None = None  # where a rotary position
    plain_k: Float[Tensor, "batch heads tokens qk_width"] | None = None  # turned q and k: before it
    rest: Tensor | None = None  # what the parts themselves carry from `attend` to `join`


@runtime_checkable
class Parts(Protocol):
    """A library's block, taken apart. Putting the parts together again gives the block, bit for
    bit in float32."""

    def attend(self, tokens: Tokens, given: dict[str, Any]) -> list[Heads]:
        """Norm, projections, q/k norm and positions of each attention in the block."""

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        """The residual stream after attention: projection, layer scale, drop path, sum."""

    def feed(self, x: Tensor) -> Tensor:
        """The residual stream after the MLP."""


class Seen(NamedTuple):
    """What a block saw, shown to a method."""

    tokens: Tokens
    x_pre: Float[Tensor, "batch tokens width"]  # the block's input
    heads: list[Heads]
    graph: Float[Tensor, "batch heads tokens tokens"] | None  # where the method asked for it
    prefix: int
    cls: bool
    depth: int

    @property
    def patches(self) -> int:
        return self.tokens.source.shape[1]

    def feature(self, name: Literal["key", "query", "value"]) -> Float[Tensor, "batch tokens w"]:
        """One of the attention's vectors, heads concatenated."""
        parts = [_content(heads, name).transpose(1, 2).flatten(2) for heads in self.heads]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _content(heads: Heads, name: str) -> Tensor:
    """Likeness is about content: where a rotary position turned a vector, take it unturned."""
    if name == "value":
        return heads.v
    plain, turned = (heads.plain_q, heads.q) if name == "query" else (heads.plain_k, heads.k)
    return turned if plain is None else plain


@runtime_checkable
class Method(Protocol):
    """The socket for everything that reduces tokens. Must be hashable, picklable, free of state."""

    def kept(self, stage: Stage, patches: int) -> int:
        """How many of so many patch tokens it keeps: known before any picture is seen."""

    def check(self, stage: Stage, patches: int, cls: bool) -> None:
        """Raise ValueError if the stage asks for what the method cannot do."""

    def wants_graph(self, stage: Stage) -> bool:
        """Does it look at the attention graph at this stage?"""

    def wants_history(self) -> bool:
        """Does it look at the attention received in all blocks so far?"""

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        """Decide which patch tokens stay."""

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        """Multiply-accumulates of the decision itself, for one picture."""


#: A CPU scores so many pictures at a time: their graphs stay in its cache, and their memory is
#: small. A picture's result does not depend on its batch, so nothing else changes.
AT_ONCE = 8


@dataclass(frozen=True)
class Task:
    """What one block has to do in a pruned model."""

    method: Method
    stage: Stage | None  # None: only pass the tokens on
    prefix: int
    cls: bool
    depth: int
    last: bool  # hands back a plain tensor
    remember: bool = False  # add this block's attention to the tokens' history


def run(parts: Parts, task: Task, x: Tensor | Tokens, given: dict[str, Any]) -> Tensor | Tokens:
    """One block: attention, MLP, and at its end the stage, if it has one.

    `given` is whatever else the library handed to the block (positions, masks).
    """
    tokens = Tokens.of(x, task.prefix)
    score = task.stage is not None and task.method.wants_graph(task.stage)
    if score and tokens.x.device.type == "cpu" and not torch.compiler.is_compiling():
        starts = range(0, len(tokens.x), AT_ONCE)
        turns = [_pictures(tokens, slice(at, at + AT_ONCE)) for at in starts]
        out: Tensor | Tokens = _together([_run(parts, task, turn, given, score) for turn in turns])
        return out
    return _run(parts, task, tokens, given, score)


def _run(
    parts: Parts, task: Task, tokens: Tokens, given: dict[str, Any], score: bool
) -> Tensor | Tokens:
    heads = parts.attend(tokens, given)
    outputs, graph = _attention(heads, score or task.remember)
    out = parts.feed(parts.join(tokens.x, heads, outputs))
    if task.last:
        return out
    with torch.no_grad(), no_autocast(out):
        history = _remembered(tokens, graph, task) if task.remember else tokens.history
        left = Tokens(out, tokens.source, tokens.moved, history)
        if task.stage is None:
            return left
        task.method.check(task.stage, tokens.source.shape[1], task.cls)
        seen = Seen(left, tokens.x, heads, graph, task.prefix, task.cls, task.depth)
        reduction = task.method.reduce(seen, task.stage)
    return reduced(left, reduction, task.prefix)


def _pictures(value: Any, which: slice) -> Any:
    """Some pictures of a batch, in everything that a (nested) tuple of tensors holds."""
    if isinstance(value, Tensor):
        return value[which]
    if isinstance(value, tuple):
        return type(value)(*(_pictures(field, which) for field in value))
    return value


def _together(values: Sequence[Any]) -> Any:
    """The batches as one again."""
    if isinstance(values[0], Tensor):
        return torch.cat(tuple(values)) if len(values) > 1 else values[0]
    if isinstance(values[0], tuple):
        fields = zip(*values, strict=True)
        return type(values[0])(*(_together(field) for field in fields))
    return values[0]


def _remembered(tokens: Tokens, graph: Tensor | None, task: Task) -> Tensor:
    assert graph is not None
    received = average_attention(graph)[:, task.prefix :]
    return received if tokens.history is None else tokens.history + received


def reduced(tokens: Tokens, reduction: Reduction, prefix: int) -> Tokens:
    """The prefix tokens and the kept patch tokens, with all that travels along."""
    keep = reduction.keep
    first = torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)
    x = take(tokens.x, torch.cat((first, keep + prefix), dim=1))
    history = None if tokens.history is None else tokens.history.gather(1, keep)
    return Tokens(x, tokens.source.gather(1, keep), True, history, reduction)


def _attention(heads: list[Heads], score: bool) -> tuple[list[Tensor], Tensor | None]:
    """Each attention's output, and the graph of all their heads if it is asked for."""
    if not score:
        return [_fused(part) if part.fused else _unfused(part) for part in heads], None
    graphs = [attention_graph(part.q, part.k, part.scale, part.bias) for part in heads]
    outputs = [
        F.dropout(graph, part.dropout).to(part.v.dtype) @ part.v
        for graph, part in zip(graphs, heads, strict=True)
    ]
    graph = graphs[0] if len(graphs) == 1 else torch.cat(graphs, dim=1)
    return outputs, graph.detach()


def _fused(part: Heads) -> Tensor:
    return F.scaled_dot_product_attention(
        part.q, part.k, part.v, attn_mask=part.bias, dropout_p=part.dropout
    )


def _unfused(part: Heads) -> Tensor:
    """As the libraries write it when fused attention is switched off, in the model's precision."""
    logits = (part.q * part.scale) @ part.k.transpose(-2, -1)
    if part.bias is not None:
        logits = logits + part.bias
    return F.dropout(logits.softmax(dim=-1), part.dropout) @ part.v
