"""Run one Transformer block with a token reduction in it, from the block's parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .batching import concat, select
from .grid import carrying, followed, restored
from .method import Method, Seen
from .scoring.attention import Heads, output
from .scoring.backends import scorer
from .scoring.graph import Graph, average_attention
from .scoring.precision import no_autocast
from .scoring.scorer import Scorer
from .task import Parts, Task
from .tokens import CARRIED, Reduction, Tokens, reduced

#: A CPU scores so many images at a time: their graphs stay in its cache, and their memory is
#: small. An image's result does not depend on its batch, so nothing else changes.
AT_ONCE = 4


def run(
    parts: Parts,
    task: Task,
    x: Tensor | Tokens,
    given: dict[str, Any],
    left: list[Tokens] | None = None,
) -> Tensor | Tokens:
    """One block: attention, MLP, and its stage, if it has one.

    `given` is whatever else the library handed to the block (positions, masks). To `left`, if there
    is one, the tokens are appended that leave the block: the last hands back a plain tensor, and a
    head that pools has to know how many patches are in each. With outputs="grid" every block hands
    back the whole grid, which carries the tokens to the next.
    """
    prefix = task.geometry.prefix
    _refuse_bare_grid(task, x)
    tokens = Tokens.of(x, prefix)
    sight, outputs, reduction = _attend(parts, task, tokens, given)
    now = sight.tokens._replace(x=parts.join(tokens.x, sight.heads, outputs), reduction=None)
    undecided = task.stage is not None and reduction is None
    if undecided and task.decides_after == "projection":
        reduction, undecided = _decide(task, sight._replace(tokens=now)), False
    del outputs
    decider = sight.scorer
    if not undecided:
        del sight  # q, k and v need not wait for the MLP, which takes most memory
    if reduction is not None and task.skips_mlp:
        now = _reduce(task, now, reduction, decider)
    now = now._replace(x=parts.feed(now.x))
    if undecided:
        reduction = _decide(task, sight._replace(tokens=now))
    if reduction is not None and not task.skips_mlp:
        now = _reduce(task, now, reduction, decider)
    if task.last:
        now = now._replace(x=now.read(prefix), mixture=None)
    if left is not None:
        left.append(now)
    if task.outputs == "grid":
        return restored(now, prefix) if task.last else carrying(now, prefix)
    return now.x if task.last else now


def _reduce(task: Task, tokens: Tokens, reduction: Reduction, scorer: Scorer) -> Tokens:
    """What the decision makes of the tokens, and of the grid where it is asked for."""
    prefix = task.geometry.prefix
    left = reduced(tokens, reduction, prefix, scorer)
    if task.outputs == "grid":
        left = left._replace(grid=followed(tokens, left, reduction, prefix))
    return left


def _refuse_bare_grid(task: Task, x: Tensor | Tokens) -> None:
    """A grid without the tokens that it was made of cannot be gone on with."""
    if (
        task.outputs == "grid"
        and task.follows
        and isinstance(x, Tensor)
        and not hasattr(x, CARRIED)
    ):
        raise ValueError(
            "what a pruned block put out was replaced on its way to the next one, which needs the "
            'very same tensor: take off hooks that change it, or prune without outputs="grid"'
        )


def run_prefix_only(parts: Parts, task: Task, x: Tensor | Tokens, given: dict[str, Any]) -> Tensor:
    """The last block for a head that reads the prefix tokens alone: what becomes of them, and of
    no other token. They attend to all tokens as ever, so for them nothing changes.

    A stage in this block is left out: even between attention and MLP, it would choose among patch
    tokens that no attention sees any more. So is the history, which only later stages read.
    """
    prefix = task.geometry.prefix
    tokens = Tokens.of(x, prefix)
    heads = _sized(parts.attend(tokens, given, prefix), tokens, task.method)
    outputs = [output(part) for part in heads]
    x = parts.feed(parts.join(tokens.x[:, :prefix], heads, outputs))
    return tokens._replace(x=x).read(prefix)


def _attend(
    parts: Parts, task: Task, tokens: Tokens, given: dict[str, Any]
) -> tuple[Seen, list[Tensor], Reduction | None]:
    """The block's attention: what was to be seen, its outputs, and the decision if it is ripe."""
    heads = _sized(parts.attend(tokens, given), tokens, task.method)
    sight = Seen(tokens, tokens.x, heads, None, task.geometry, scorer(task.backend, heads))
    if task.stage is None and not task.remember:
        return sight, [sight.scorer.output(part) for part in heads], None
    needs = _needs_graph(task) or _needs_columns(task)
    whole = tokens.x.device.type != "cpu" or not needs or task.decides_after != "attention"
    # A compiler is not asked how large the batch is: the graph would be for that size alone.
    if whole or torch.compiler.is_compiling() or tokens.x.shape[0] <= AT_ONCE:
        return _score(task, sight)
    starts = range(0, tokens.x.shape[0], AT_ONCE)
    turns = [_score(task, _some(sight, slice(at, at + AT_ONCE))) for at in starts]
    history = concat([turn[0].tokens.history for turn in turns])
    outputs = [torch.cat(parts_of) for parts_of in zip(*(turn[1] for turn in turns), strict=True)]
    reduction: Reduction | None = concat([turn[2] for turn in turns])
    return sight._replace(tokens=tokens._replace(history=history)), outputs, reduction


def _some(sight: Seen, which: slice) -> Seen:
    """What was to be seen of some images."""
    return sight._replace(
        tokens=select(sight.tokens, which),
        x_pre=sight.x_pre[which],
        heads=[part.select(which) for part in sight.heads],
    )


def _score(task: Task, sight: Seen) -> tuple[Seen, list[Tensor], Reduction | None]:
    if _needs_graph(task):
        outputs, graph = sight.scorer.attention(sight.heads)
        sight = sight._replace(graph=graph, columns=graph)
    elif _needs_columns(task):
        outputs, columns = sight.scorer.attention_sums(sight.heads)
        sight = sight._replace(columns=columns)
    else:
        outputs = [sight.scorer.output(part) for part in sight.heads]
    if task.remember:
        history = _remember(sight.tokens, sight.graph, sight.prefix)
        sight = sight._replace(tokens=sight.tokens._replace(history=history))
    if task.stage is None or task.decides_after != "attention":
        return sight, outputs, None
    return sight, outputs, _decide(task, sight)


def _needs_graph(task: Task) -> bool:
    return task.remember or (task.stage is not None and task.method.wants_graph(task.stage))


def _needs_columns(task: Task) -> bool:
    return task.stage is not None and task.method.wants_columns(task.stage)


def _decide(task: Task, seen: Seen) -> Reduction:
    """What the block's stage makes of its tokens."""
    stage = task.stage
    assert stage is not None
    with torch.no_grad(), no_autocast(seen.tokens.x):
        task.method.check(stage, seen.patches, task.geometry)
        reduction = task.method.reduce(seen._replace(weights=task.weights), stage)
    _refuse_undeclared(task.method, reduction)
    return reduction


def _refuse_undeclared(method: Method, reduction: Reduction) -> None:
    """A head that pools is made to weigh tokens only for a method that says beforehand it must."""
    for field, declared, word in (
        (reduction.into, method.merges, "merges"),
        (reduction.valid, method.adaptive, "adaptive"),
    ):
        if field is not None and not declared:
            raise ValueError(
                f"{type(method).__name__} has to say `{word} = True`: heads that pool must know"
            )


def _remember(tokens: Tokens, graph: Graph | None, prefix: int) -> Tensor:
    assert graph is not None
    with torch.no_grad(), no_autocast(tokens.x):
        received = average_attention(graph)[:, prefix:]
    return received if tokens.history is None else tokens.history + received


def _sized(heads: list[Heads], tokens: Tokens, method: Method) -> list[Heads]:
    """The heads with the sizes that attention goes by; padding has none."""
    size = tokens.weight(method.proportional)
    return heads if size is None else [part._replace(size=size) for part in heads]
