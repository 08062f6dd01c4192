"""One Transformer block of a pruned model, from top to bottom.

A `PrunedBlock` runs in place of a library's block: attend, decide, join, reduce, feed. Its `Parts`
come from the library, its `Task` from the plan, with the method that decides. Read this page first.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .cost import Compute, Geometry
from .method import Method, Part, Seen
from .schedule import Stage
from .scoring.attention import Heads, attention_weights, output, weigh_values
from .scoring.graph import (
    ColumnGraph,
    DenseGraph,
    Graph,
    average_attention,
    is_autocast,
    no_autocast,
)
from .scoring.indexing import concat, select
from .scoring.scorer import Backend, Scorer, scorer_for
from .tokens import (
    CARRIED,
    Outputs,
    Reduction,
    Tokens,
    reduce_graph,
    reduce_tokens,
    restore_carrying,
    restore_grid,
    update_grid,
)

if TYPE_CHECKING:
    from .backbones import Backbone
    from .plan import Plan
    from .surgery import Sizes

#: How many images a CPU scores at a time, so that their attention graphs stay in its cache. The
#: result for an image does not depend on its batch, so nothing else changes.
CHUNK = 4

#: In older versions, torch.compile does not know the properties of a named tuple, such as `Seen`.
OLDEST_COMPILER = (2, 11)
_COMPILER_IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_COMPILER


def check_compiler() -> None:
    """Refuse a torch that cannot compile pruned models."""
    if _COMPILER_IS_OLD:
        oldest = ".".join(map(str, OLDEST_COMPILER))
        raise ValueError(
            f"compiling a pruned model needs torch {oldest} or newer, and this is "
            f"{torch.__version__}: run it without torch.compile"
        )


if _COMPILER_IS_OLD:  # the compiler calls it while it traces, so that the sentence is what fails
    check_compiler = torch.compiler.assume_constant_result(check_compiler)


def refuse_old_compiler() -> None:
    """Call `check_compiler` if a compiler is tracing. Whatever it may trace first calls this: the
    model's forward, the patch embedding, and the blocks."""
    if _COMPILER_IS_OLD and torch.compiler.is_dynamo_compiling():
        check_compiler()


@runtime_checkable
class Parts(Protocol):
    """A library's block, taken apart. Put together again, the parts give the block bit for bit in
    float32."""

    def attend(
        self, tokens: Tokens, kwargs: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        """Apply norm, projections, q/k norm and positions for each attention of the block.

        With `queries`, compute q for that many first tokens only; k and v are for all tokens.
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
    compute: Compute = "all"  # as passed to `prune_`
    block: int = 0  # counted from 1

    @property
    def wants_graph(self) -> bool:
        return self.remember or (self.stage is not None and self.method.wants_graph(self.stage))

    @property
    def wants_columns(self) -> bool:
        return self.stage is not None and self.method.wants_columns(self.stage)


class PrunedBlock:
    """A block of a pruned model. Its `forward` replaces that of the library's block.

    Args:
        vit: The model that is pruned.
        block: Its module that this one is attached to.
        task: What it has to do.
        plan: Of the whole model, for `gmacs` and `repr`; the forward does not read it.
        sizes: Its tasks for images of other sizes; None refuses them.
    """

    def __init__(
        self,
        vit: Backbone,
        block: nn.Module,
        task: Task,
        plan: Plan,
        sizes: Sizes | None = None,
    ) -> None:
        self.vit, self.block, self.task, self.plan, self.sizes = vit, block, task, plan, sizes
        # What does not depend on the image is asked here, and not again for every one.
        self.parts, self.call, self.bypassed = vit.parts(block), vit.call, vit.bypassed(block)
        self.patches = task.geometry.patches
        self.wants_graph, self.wants_columns = task.wants_graph, task.wants_columns

    def forward(
        self,
        *args: Any,
        prefix_only: bool = False,
        left: list[Tokens] | None = None,
        **kwargs: Any,
    ) -> Tensor | Tokens:
        """Run the block as its library calls it.

        Args:
            prefix_only: Compute the last block for the prefix tokens alone.
            left: Receives the tokens that leave the block. The last block returns a plain tensor,
                but a head that pools needs the sizes of the tokens.
        """
        refuse_old_compiler()
        self.vit.ending_class.refuse_additions(self.vit.model, self.bypassed)
        recompute = self.call.checkpoint(self.block) if self.block.training else None
        if recompute is not None:
            return recompute(partial(self._forward, prefix_only, left, kwargs), *args)  # type: ignore[no-any-return]
        return self._forward(prefix_only, left, kwargs, *args)

    def _forward(
        self, prefix_only: bool, left: list[Tokens] | None, kwargs: dict[str, Any], *args: Any
    ) -> Tensor | Tokens:
        x, kwargs = self.call.read(args, kwargs)
        pruned = self.at_size_of(x)
        if prefix_only and self.task.last:  # some libraries pass the keyword to all blocks
            return pruned.run_prefix_only(x, kwargs)
        return pruned.run(x, kwargs, left)

    def at_size_of(self, x: Tensor | Tokens) -> PrunedBlock:
        """Return the block for images of this size: itself, or one with another task."""
        geometry = self.task.geometry
        patches = x.whole if isinstance(x, Tokens) else x.shape[1] - geometry.prefix
        if patches is None or patches == self.patches:
            return self
        if self.sizes is None:
            raise ValueError(
                f"the model was pruned for images of {self.patches} patches, got {patches}: "
                "this run takes one size, so resize the model or the images first"
            )
        # `index` makes the number a constant for a compiler, which compiles one graph for each.
        pruned = self.sizes.block(self.task.block, operator.index(patches))
        if pruned.task.last == self.task.last:
            return pruned
        task = replace(pruned.task, last=self.task.last)  # changed by `patches_left`
        return PrunedBlock(pruned.vit, pruned.block, task, pruned.plan)

    def run(
        self, x: Tensor | Tokens, kwargs: dict[str, Any], left: list[Tokens] | None = None
    ) -> Tensor | Tokens:
        """Attend, decide, join, reduce, feed. The method decides once it has seen what it looks at:
        the attention, the residual stream after it, or the residual stream after the MLP. One that
        acts at the start reduces the tokens, and their attention, before they attend."""
        parts, task = self.parts, self.task
        if task.outputs == "grid" and task.follows:
            _refuse_bare_grid(x)
        tokens = x if isinstance(x, Tokens) else Tokens.of(x, task.geometry.prefix)
        if task.stage is not None and task.method.acts == "start":
            tokens = self._reduce_and_attend(tokens, kwargs)
            return self._hand_on(tokens._replace(x=parts.feed(tokens.x)), left)
        seen, outputs, reduction = self._attend(tokens, kwargs)
        x, tokens, scorer = parts.join(tokens.x, seen.heads, outputs), seen.tokens, seen.scorer
        seen_before = None
        if task.stage is not None:
            tokens = tokens._replace(x=x)
            if task.decides_after == "projection":
                reduction = self._decide(seen._replace(tokens=tokens))
            elif task.decides_after == "mlp":
                seen_before = seen
        del seen, outputs  # free q, k and v before the MLP, which takes the most memory
        if reduction is not None and task.skips_mlp:
            tokens = self._reduce(tokens, reduction, scorer)
            x = tokens.x
        tokens = tokens._replace(x=parts.feed(x), reduction=reduction)
        if seen_before is not None:
            reduction = self._decide(seen_before._replace(tokens=tokens))
        if reduction is not None and not task.skips_mlp:
            tokens = self._reduce(tokens, reduction, scorer)
        return self._hand_on(tokens, left)

    def run_prefix_only(self, x: Tensor | Tokens, kwargs: dict[str, Any]) -> Tensor:
        """Run the last block for a head that reads the prefix tokens alone.

        They attend to all tokens, so nothing changes for them. A stage in this block is skipped, as
        no later attention would see what it kept, unless it reduces the tokens before they attend:
        at another size there may be such a stage. So is the history, which only stages read.
        """
        parts, task = self.parts, self.task
        prefix = task.geometry.prefix
        tokens = Tokens.of(x, prefix)
        if task.stage is not None and task.method.acts == "start":
            x = self._reduce_and_attend(tokens, kwargs).x[:, :prefix]
        else:
            heads = _with_sizes(parts.attend(tokens, kwargs, prefix), tokens, task.method)
            x = parts.join(tokens.x[:, :prefix], heads, [output(attn) for attn in heads])
        return task.method.read(tokens._replace(x=parts.feed(x)), prefix)

    def _attend(
        self, tokens: Tokens, kwargs: dict[str, Any]
    ) -> tuple[Seen, list[Tensor], Reduction | None]:
        """Return what the method sees, the outputs of attention, and its decision if it decides
        here."""
        task = self.task
        heads = _with_sizes(self.parts.attend(tokens, kwargs), tokens, task.method)
        scorer = scorer_for(task.backend, heads)
        # Never read the batch size while compiling: the graph would be specialized to it.
        chunked = (
            tokens.x.device.type == "cpu"
            and (self.wants_graph or self.wants_columns)
            and task.decides_after == "attention"
            and not torch.compiler.is_compiling()
            and tokens.x.shape[0] > CHUNK
        )
        if not chunked:
            return self._score(tokens, heads, scorer)
        images = [slice(start, start + CHUNK) for start in range(0, tokens.x.shape[0], CHUNK)]
        if not self.wants_graph:
            return self._score(tokens, heads, scorer, images)
        chunks = [
            self._score(select(tokens, chunk), [attn.select(chunk) for attn in heads], scorer)
            for chunk in images
        ]
        history = concat([seen.tokens.history for seen, _, _ in chunks])
        outputs = [torch.cat(chunk) for chunk in zip(*(chunk[1] for chunk in chunks), strict=True)]
        reduction: Reduction | None = concat([decision for _, _, decision in chunks])
        tokens = tokens._replace(history=history)
        return Seen(tokens, tokens.x, heads, None, task.geometry, scorer), outputs, reduction

    def _reduce_and_attend(self, tokens: Tokens, kwargs: dict[str, Any]) -> Tokens:
        """Reduce the tokens, then attend. The method decides by the attention of all tokens, which
        is reduced with them."""
        parts, task = self.parts, self.task
        heads = _with_sizes(parts.attend(tokens, kwargs), tokens, task.method)
        weights = attention_weights(heads)
        seen = Seen(tokens, tokens.x, heads, None, task.geometry, scorer_for(task.backend, heads),
                    columns=DenseGraph(weights.detach()))  # fmt: skip
        reduction = self._decide(seen)
        left = self._reduce(tokens, reduction, seen.scorer)
        heads = parts.attend(left, kwargs)  # only for the values
        outputs = weigh_values(reduce_graph(weights, tokens, reduction, seen.prefix), heads)
        return left._replace(x=parts.join(left.x, heads, outputs))

    def _score(
        self,
        tokens: Tokens,
        heads: list[Heads],
        scorer: Scorer,
        chunks: list[slice] | None = None,
    ) -> tuple[Seen, list[Tensor], Reduction | None]:
        """Compute attention with as much of its graph as the method wants, and decide if it decides
        here. Column sums are computed by chunks of images, to stay in the cache."""
        task = self.task
        graph: Graph | None = None
        columns: ColumnGraph | None = None
        if self.wants_graph:
            outputs, graph = scorer.attention(heads)
            columns = graph
            if task.remember:
                tokens = _remember(tokens, graph, task.geometry.prefix)
        elif self.wants_columns and chunks is not None:
            outputs, columns = _sums_by_chunks(heads, scorer, chunks)
        elif self.wants_columns:
            outputs, columns = scorer.attention_sums(heads)
        else:
            outputs = [scorer.output(attn) for attn in heads]
        seen = Seen(tokens, tokens.x, heads, graph, task.geometry, scorer, columns)
        if task.stage is None or task.decides_after != "attention":
            return seen, outputs, None
        return seen, outputs, self._decide(seen)

    def _decide(self, seen: Seen) -> Reduction:
        """Let the method decide what happens to the tokens at this block's stage."""
        method, stage = self.task.method, self.task.stage
        assert stage is not None
        if torch.is_grad_enabled() or is_autocast(seen.x_pre):
            with torch.no_grad(), no_autocast(seen.x_pre):
                return self._decide(seen)
        # A method may have kept another number of tokens at an earlier stage than it declares.
        method.check(stage, seen.patches, self.task.geometry)
        reduction = method.reduce(seen, stage)
        # Heads that pool rely on what a method declares.
        if reduction.into is not None and not method.merges:
            _refuse_undeclared(method, "merges")
        if reduction.valid is not None and not method.adaptive:
            _refuse_undeclared(method, "adaptive")
        return reduction

    def _reduce(self, tokens: Tokens, reduction: Reduction, scorer: Scorer) -> Tokens:
        """Carry out the decision, and update the grid with outputs="grid"."""
        prefix = self.task.geometry.prefix
        left = reduce_tokens(tokens, reduction, prefix, scorer)
        if self.task.outputs == "grid":
            left = left._replace(grid=update_grid(tokens, left, reduction, prefix))
        return left

    def _hand_on(self, tokens: Tokens, left: list[Tokens] | None) -> Tensor | Tokens:
        """Return the input of the next block or the head."""
        task, prefix = self.task, self.task.geometry.prefix
        if task.last:
            tokens = tokens._replace(x=task.method.read(tokens, prefix), state=None)
        if left is not None:
            left.append(tokens)
        if task.outputs == "grid":
            return (restore_grid if task.last else restore_carrying)(tokens, prefix)
        return tokens.x if task.last else tokens


def _with_sizes(heads: list[Heads], tokens: Tokens, method: Method) -> list[Heads]:
    """Add the token sizes that attention is proportional to; padding has size 0."""
    size = tokens.weight(method.proportional)
    return heads if size is None else [attn._replace(size=size) for attn in heads]


def _sums_by_chunks(
    heads: list[Heads], scorer: Scorer, chunks: list[slice]
) -> tuple[list[Tensor], ColumnGraph]:
    heads_of = [[attn.select(chunk) for attn in heads] for chunk in chunks]
    outputs, columns = zip(*map(scorer.attention_sums, heads_of), strict=True)
    return [torch.cat(chunk) for chunk in zip(*outputs, strict=True)], concat(columns)


def _remember(tokens: Tokens, graph: Graph, prefix: int) -> Tokens:
    """Add the attention that each patch token receives in this block to its history."""
    with torch.no_grad(), no_autocast(tokens.x):
        received = average_attention(graph)[:, prefix:]
    history = received if tokens.history is None else tokens.history + received
    return tokens._replace(history=history)


def _refuse_bare_grid(x: Tensor | Tokens) -> None:
    """Refuse a grid that no longer carries the tokens it was made of."""
    if isinstance(x, Tensor) and not hasattr(x, CARRIED):
        raise ValueError(
            "the output of a pruned block was replaced before it reached the next block: remove "
            'hooks that replace it, or prune without outputs="grid"'
        )


def _refuse_undeclared(method: Method, attribute: str) -> NoReturn:
    raise ValueError(
        f"{type(method).__name__} must set `{attribute} = True`: heads that pool rely on it"
    )
