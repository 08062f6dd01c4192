"""One Transformer block of a pruned model, from top to bottom.

A `PrunedBlock` runs in place of a library's block: attend, decide, join, reduce, feed. The block's
`Parts` come from its library, its `Task` from the plan; the method that decides is part of the
task. This is the page to read first.
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .batching import concat, select
from .cost import Compute, Geometry
from .grid import Outputs, carrying, followed, restored
from .method import Method, Part, Seen
from .schedule import Stage
from .scoring.attention import Heads, output, weigh_values, written_graph
from .scoring.backends import Backend, scorer
from .scoring.graph import ColumnGraph, DenseGraph, average_attention
from .scoring.precision import no_autocast
from .scoring.scorer import Scorer
from .tokens import CARRIED, Reduction, Tokens, reduced, reduced_graph

if TYPE_CHECKING:
    from .backbones import BlockCall
    from .plan import Plan
    from .sizes import Sizes

#: How many images a CPU scores at a time: their attention graphs then stay in its cache. The result
#: for an image does not depend on its batch, so nothing else changes.
CHUNK = 4


@runtime_checkable
class Parts(Protocol):
    """A library's block, taken apart. Put together again, the parts give the block bit for bit in
    float32."""

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        """Apply norm, projections, q/k norm and positions for each attention of the block.

        With `queries`, only the first so many tokens ask; keys and values are those of all tokens.
        """

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        """Return the residual stream after attention: projection, layer scale, drop path, sum."""

    def feed(self, x: Tensor) -> Tensor:
        """Return the residual stream after the MLP."""


@dataclass(frozen=True)
class Task:
    """What one block has to do in a pruned model, worked out by `Plan.tasks`."""

    method: Method
    stage: Stage | None  # None: only pass the tokens on
    geometry: Geometry
    last: bool  # returns a plain tensor
    decides_after: Part = "attention"  # where in the block the method has seen enough
    skips_mlp: bool = False  # do tokens that the stage drops skip the block's MLP?
    remember: bool = False  # add this block's attention to the tokens' history
    backend: Backend = "auto"
    outputs: Outputs = "tokens"
    follows: bool = False  # does a pruned block come before this one?
    compute: Compute = "all"  # as `prune_` was told
    block: int = 0  # its number, counted from 1

    @property
    def wants_graph(self) -> bool:
        return self.remember or (self.stage is not None and self.method.wants_graph(self.stage))

    @property
    def wants_columns(self) -> bool:
        return self.stage is not None and self.method.wants_columns(self.stage)


class PrunedBlock:
    """A block of a pruned model. Its `forward` stands in for the block's own.

    block: the library's module that it is attached to
    parts: that module, taken apart
    task:  what it has to do
    plan:  of the whole model, for `gmacs` and `repr`; the forward does not read it
    call:  how the library calls its blocks
    sizes: what it has to do for images of other sizes; None refuses them
    """

    def __init__(
        self,
        block: nn.Module,
        parts: Parts,
        task: Task,
        plan: Plan,
        call: BlockCall,
        sizes: Sizes | None = None,
    ) -> None:
        self.block, self.parts, self.task, self.plan, self.call = block, parts, task, plan, call
        self.sizes = sizes

    def forward(
        self,
        *args: Any,
        prefix_only: bool = False,
        left: list[Tokens] | None = None,
        **kwargs: Any,
    ) -> Tensor | Tokens:
        """Run the block the way its library calls it.

        Args:
            prefix_only: compute the last block for the prefix tokens alone.
            left: receives the tokens that leave the block. The last block returns a plain tensor,
                and a head that pools needs to know how many patches are in each token.
        """
        x, kwargs = self.call.read(args, kwargs)
        pruned = self.at_size_of(x)
        if prefix_only and self.task.last:  # some libraries pass a keyword to all blocks alike
            return pruned.run_prefix_only(x, kwargs)
        return pruned.run(x, kwargs, left)

    def at_size_of(self, x: Tensor | Tokens) -> PrunedBlock:
        """Return the block as it is for images of this size: itself, or one with another task."""
        geometry = self.task.geometry
        patches = x.whole if isinstance(x, Tokens) else x.shape[1] - geometry.prefix
        if patches is None or patches == geometry.patches:
            return self
        if self.sizes is None:
            raise ValueError(
                f"the model was pruned for images of {geometry.patches} patches and got some of "
                f"{patches}, and this run is for one size: set the model to theirs first"
            )
        # A compiler must take the number for a constant: it makes a graph for each.
        pruned = self.sizes.block(self.task.block, operator.index(patches))
        if pruned.task.last == self.task.last:
            return pruned
        task = replace(pruned.task, last=self.task.last)  # while `patches_left` looks
        return PrunedBlock(pruned.block, pruned.parts, task, pruned.plan, pruned.call)

    def run(
        self, x: Tensor | Tokens, kwargs: dict[str, Any], left: list[Tokens] | None = None
    ) -> Tensor | Tokens:
        """Attend, decide, join, reduce, feed. When the method can decide depends on what it looks
        at: the attention, the stream after it, or the stream after the MLP. One that acts at the
        start decides by the attention too, and reduces before tokens attend."""
        parts, task = self.parts, self.task
        _refuse_bare_grid(task, x)
        tokens = Tokens.of(x, task.geometry.prefix)
        if task.stage is not None and task.method.acts == "start":
            tokens = self._reduce_and_attend(tokens, kwargs)
            return self._hand_on(tokens._replace(x=parts.feed(tokens.x)), left)
        seen, outputs, reduction = self._attend(tokens, kwargs)
        tokens = seen.tokens._replace(x=parts.join(tokens.x, seen.heads, outputs), reduction=None)
        if task.stage is not None and task.decides_after == "projection":
            reduction = self._decide(seen._replace(tokens=tokens))
        undecided = task.stage is not None and task.decides_after == "mlp"
        late, kernels = seen if undecided else None, seen.scorer
        del seen, outputs  # q, k and v need not wait for the MLP, which takes most memory
        if reduction is not None and task.skips_mlp:
            tokens = self._reduce(tokens, reduction, kernels)
        tokens = tokens._replace(x=parts.feed(tokens.x))
        if late is not None:
            reduction = self._decide(late._replace(tokens=tokens))
        if reduction is not None and not task.skips_mlp:
            tokens = self._reduce(tokens, reduction, kernels)
        return self._hand_on(tokens, left)

    def run_prefix_only(self, x: Tensor | Tokens, kwargs: dict[str, Any]) -> Tensor:
        """Run the last block for a head that reads the prefix tokens alone.

        They attend to all tokens, so nothing changes for them. A stage in this block is left out:
        no later attention would see what it chose. So is the history, which only stages read.
        """
        parts, task = self.parts, self.task
        prefix = task.geometry.prefix
        tokens = Tokens.of(x, prefix)
        heads = _with_sizes(parts.attend(tokens, kwargs, prefix), tokens, task.method)
        x = parts.join(tokens.x[:, :prefix], heads, [output(part) for part in heads])
        return task.method.read(tokens._replace(x=parts.feed(x)), prefix)

    def _attend(
        self, tokens: Tokens, kwargs: dict[str, Any]
    ) -> tuple[Seen, list[Tensor], Reduction | None]:
        """Return what there is to see, the attention's outputs, and the decision if it is due."""
        task = self.task
        heads = _with_sizes(self.parts.attend(tokens, kwargs), tokens, task.method)
        seen = Seen(tokens, tokens.x, heads, None, task.geometry, scorer(task.backend, heads))
        # Compilers are not asked for the batch size: the graph would be specialised to it.
        chunked = (
            tokens.x.device.type == "cpu"
            and (task.wants_graph or task.wants_columns)
            and task.decides_after == "attention"
            and not torch.compiler.is_compiling()
            and tokens.x.shape[0] > CHUNK
        )
        if not chunked:
            return self._score(seen)
        images = [slice(start, start + CHUNK) for start in range(0, tokens.x.shape[0], CHUNK)]
        if not task.wants_graph:
            return self._score(seen, images)
        chunks = [self._score(_images(seen, each)) for each in images]
        history = concat([seen.tokens.history for seen, _, _ in chunks])
        outputs = [torch.cat(heads) for heads in zip(*(chunk[1] for chunk in chunks), strict=True)]
        reduction: Reduction | None = concat([decision for _, _, decision in chunks])
        return seen._replace(tokens=tokens._replace(history=history)), outputs, reduction

    def _reduce_and_attend(self, tokens: Tokens, kwargs: dict[str, Any]) -> Tokens:
        """Return the tokens after attention, reduced before it. The attention of all tokens is what
        the method goes by; it is then reduced with them."""
        parts, task = self.parts, self.task
        heads = _with_sizes(parts.attend(tokens, kwargs), tokens, task.method)
        graph = written_graph(heads)
        seen = Seen(tokens, tokens.x, heads, None, task.geometry, scorer(task.backend, heads),
                    columns=DenseGraph(graph.detach()))  # fmt: skip
        reduction = self._decide(seen)
        left = self._reduce(tokens, reduction, seen.scorer)
        heads = parts.attend(left, kwargs)  # for the values alone
        outputs = weigh_values(reduced_graph(graph, tokens, reduction, seen.prefix), heads)
        return left._replace(x=parts.join(left.x, heads, outputs))

    def _score(
        self, seen: Seen, chunks: list[slice] | None = None
    ) -> tuple[Seen, list[Tensor], Reduction | None]:
        """Compute the attention with as much of its graph as the method wants to see; the sums of
        its columns by chunks of images, since only these leave the cache."""
        task = self.task
        if task.wants_graph:
            outputs, graph = seen.scorer.attention(seen.heads)
            seen = seen._replace(graph=graph, columns=graph)
        elif task.wants_columns:
            outputs, columns = _attention_sums(seen, chunks)
            seen = seen._replace(columns=columns)
        else:
            outputs = [seen.scorer.output(part) for part in seen.heads]
        if task.remember:
            seen = seen._replace(tokens=_remember(seen))
        if task.stage is None or task.decides_after != "attention":
            return seen, outputs, None
        return seen, outputs, self._decide(seen)

    def _decide(self, seen: Seen) -> Reduction:
        """Let the method choose what becomes of the tokens at this block's stage."""
        method, stage = self.task.method, self.task.stage
        assert stage is not None
        quietly = torch.no_grad() if torch.is_grad_enabled() else nullcontext()
        with quietly, no_autocast(seen.tokens.x):
            method.check(stage, seen.patches, self.task.geometry)
            reduction = method.reduce(seen, stage)
        _refuse_undeclared(method, reduction)
        return reduction

    def _reduce(self, tokens: Tokens, reduction: Reduction, kernels: Scorer) -> Tokens:
        """Carry out the decision, on the grid as well if that is kept up."""
        prefix = self.task.geometry.prefix
        left = reduced(tokens, reduction, prefix, kernels)
        if self.task.outputs == "grid":
            left = left._replace(grid=followed(tokens, left, reduction, prefix))
        return left

    def _hand_on(self, tokens: Tokens, left: list[Tokens] | None) -> Tensor | Tokens:
        """Return what the next block, or the head, takes."""
        task, prefix = self.task, self.task.geometry.prefix
        if task.last:
            tokens = tokens._replace(x=task.method.read(tokens, prefix), state=None)
        if left is not None:
            left.append(tokens)
        if task.outputs == "grid":
            return restored(tokens, prefix) if task.last else carrying(tokens, prefix)
        return tokens.x if task.last else tokens


def _with_sizes(heads: list[Heads], tokens: Tokens, method: Method) -> list[Heads]:
    """Return the heads with the token sizes that attention goes by; padding has size 0."""
    size = tokens.weight(method.proportional)
    return heads if size is None else [part._replace(size=size) for part in heads]


def _attention_sums(seen: Seen, chunks: list[slice] | None) -> tuple[list[Tensor], ColumnGraph]:
    if chunks is None:
        return seen.scorer.attention_sums(seen.heads)
    parts = [[part.select(which) for part in seen.heads] for which in chunks]
    outputs, columns = zip(*map(seen.scorer.attention_sums, parts), strict=True)
    return [torch.cat(heads) for heads in zip(*outputs, strict=True)], concat(columns)


def _images(seen: Seen, which: slice) -> Seen:
    return seen._replace(
        tokens=select(seen.tokens, which),
        x_pre=seen.x_pre[which],
        heads=[part.select(which) for part in seen.heads],
    )


def _remember(seen: Seen) -> Tokens:
    """Add the attention that each patch token receives in this block to its history."""
    assert seen.graph is not None
    tokens = seen.tokens
    with torch.no_grad(), no_autocast(tokens.x):
        received = average_attention(seen.graph)[:, seen.prefix :]
    history = received if tokens.history is None else tokens.history + received
    return tokens._replace(history=history)


def _refuse_bare_grid(task: Task, x: Tensor | Tokens) -> None:
    """Refuse a grid that no longer carries the tokens it was made of."""
    bare = isinstance(x, Tensor) and not hasattr(x, CARRIED)
    if task.outputs == "grid" and task.follows and bare:
        raise ValueError(
            "the output of a pruned block was replaced before it reached the next one, which needs "
            'the same tensor: remove hooks that change it, or prune without outputs="grid"'
        )


def _refuse_undeclared(method: Method, reduction: Reduction) -> None:
    """Heads that pool weigh tokens by size only for methods that declare that sizes differ."""
    for field, declared, word in (
        (reduction.into, method.merges, "merges"),
        (reduction.valid, method.adaptive, "adaptive"),
    ):
        if field is not None and not declared:
            raise ValueError(
                f"{type(method).__name__} must declare `{word} = True`, for heads that pool tokens"
            )
