"""One attention of a block: its heads, its output, and its graph where somebody wants to see it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batching import select
from ..shapes import Float
from .graph import DenseGraph, attention_graph, cls_attention
from .precision import no_autocast, widened


class Heads(NamedTuple):
    """One attention of a block, split by heads and ready for the product of q and k."""

    q: Float[Tensor, "batch heads queries qk_width"]  # of all tokens, or of the first few
    k: Float[Tensor, "batch heads tokens qk_width"]
    v: Float[Tensor, "batch heads tokens width"]
    scale: float
    fused: bool  # does the library use fused attention here?
    dropout: float  # 0 outside training
    bias: Float[Tensor, "*any #queries tokens"] | None = None
    size: Float[Tensor, "batch tokens"] | None = None  # attention goes in proportion to it
    plain_q: Float[Tensor, "batch heads queries qk_width"] | None = None  # where a rotary position
    plain_k: Float[Tensor, "batch heads tokens qk_width"] | None = None  # turned q and k: before it
    rest: Tensor | None = None  # what the parts themselves carry from `attend` to `join`
    scales_logits: bool = False  # where it is not fused: the scale comes after the product of q, k

    def select(self, which: slice) -> Heads:
        """Those of some images of the batch. A bias may be the same for all."""
        own = self.bias is not None and self.bias.dim() == 4 and len(self.bias) == len(self.q)
        bias = self.bias if self.bias is None or not own else self.bias[which]
        part: Heads = select(self._replace(bias=None), which)
        return part._replace(bias=bias)

    def logit_bias(self) -> Float[Tensor, "*any #queries tokens"] | None:
        """All that is added to the logits: the bias, and the logarithm of the sizes."""
        if self.size is None:
            return self.bias
        sizes = self.size.log()[:, None, None]
        return sizes if self.bias is None else self.bias + sizes


def output(part: Heads) -> Float[Tensor, "batch heads queries width"]:
    """As the library computes it, fused or not."""
    bias = part.logit_bias()
    if bias is not None:
        bias = bias.to(part.q.dtype)
    if part.fused:
        return F.scaled_dot_product_attention(
            part.q, part.k, part.v, attn_mask=bias, dropout_p=part.dropout
        )
    if part.scales_logits:
        logits = part.q @ part.k.transpose(-2, -1) * part.scale
    else:
        logits = (part.q * part.scale) @ part.k.transpose(-2, -1)
    if bias is not None:
        logits = logits + bias
    return F.dropout(logits.softmax(dim=-1), part.dropout) @ part.v


def written_graph(heads: list[Heads]) -> Float[Tensor, "batch heads queries tokens"]:
    """Return the attention weights of all heads, by torch alone."""
    graphs = [attention_graph(part.q, part.k, part.scale, part.logit_bias()) for part in heads]
    return graphs[0] if len(graphs) == 1 else torch.cat(graphs, dim=1)


def weigh_values(
    graph: Float[Tensor, "batch heads queries tokens"], heads: list[Heads]
) -> list[Float[Tensor, "batch own_heads queries width"]]:
    """Return each attention's output from the weights of all heads."""
    graphs = graph.split([part.v.shape[1] for part in heads], dim=1)
    return [
        F.dropout(own, part.dropout).to(part.v.dtype) @ part.v
        for own, part in zip(graphs, heads, strict=True)
    ]


def outputs_with_graph(heads: list[Heads]) -> tuple[list[Tensor], DenseGraph]:
    """Each attention's output, and the graph of all their heads written down."""
    graph = written_graph(heads)
    return weigh_values(graph, heads), DenseGraph(graph.detach())


class ColumnSums(NamedTuple):
    """What is left of a graph: its first row, and the means of its columns."""

    first: Float[Tensor, "batch heads tokens"]
    means: Float[Tensor, "batch heads tokens"]

    @property
    def alive(self) -> None:
        return None

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        if token:
            raise ValueError(f"only the row of token 0 was kept, got {token}")
        return self.first

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        return self.means


def outputs_with_sums(heads: list[Heads]) -> tuple[list[Tensor], ColumnSums]:
    """Each attention's output, with the first row and the column means of its graph."""
    outputs, sums = zip(*(_output_with_sums(part) for part in heads), strict=True)
    if len(sums) == 1:
        return list(outputs), sums[0]
    return list(outputs), ColumnSums(*(torch.cat(rows, dim=1) for rows in zip(*sums, strict=True)))


def _output_with_sums(part: Heads) -> tuple[Tensor, ColumnSums]:
    """Written down head by head: on a CPU that is as fast as fused attention, and the sums of a
    graph in the cache cost next to nothing."""
    with no_autocast(part.q):
        batch, count, tokens, _ = part.q.shape
        q, k = (widened(x).reshape(batch * count, tokens, x.shape[-1]) for x in (part.q, part.k))
        bias = part.logit_bias()
        if bias is None:
            logits = torch.bmm(q * part.scale, k.transpose(1, 2))
        else:
            rows = bias.shape[-2]
            bias = bias.expand(batch, count, rows, tokens).reshape(batch * count, rows, tokens)
            logits = torch.baddbmm(bias.to(q.dtype), q, k.transpose(1, 2), alpha=part.scale)
        graph = logits.softmax(dim=-1)
        uniform = graph.new_full((batch * count, 1, tokens), 1 / tokens)
        means = torch.bmm(uniform, graph.detach()).view(batch, count, tokens)
        graph = graph.view(batch, count, tokens, tokens)
    weights = F.dropout(graph, part.dropout).to(part.v.dtype)
    return weights @ part.v, ColumnSums(graph[:, :, 0].detach(), means)


class Rows:
    """A graph of which single rows are computed when they are asked for, and nothing else."""

    alive = None

    def __init__(self, heads: list[Heads]) -> None:
        self.heads = heads

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        """The attention that one token pays to all."""
        return torch.cat([_row(part, token) for part in self.heads], dim=1).detach()


def _row(part: Heads, token: int) -> Float[Tensor, "batch heads tokens"]:
    one = slice(token, token + 1)
    return attention_graph(part.q[:, :, one], part.k, part.scale, _bias_of(part, one)).squeeze(2)


def sampled_rows(tokens: int, count: int, prefix: int) -> range:
    """Return the patch tokens that stand for all: at least `count` of them, spread evenly.

    >>> sampled_rows(197, count=32, prefix=1)
    range(4, 197, 6)
    """
    step = max(1, (tokens - prefix) // count)
    return range(prefix + step // 2, tokens, step)


def sampled_attention(
    heads: list[Heads], count: int, prefix: int, cls: bool
) -> list[Float[Tensor, "batch tokens"]]:
    """Return the attention that each token receives from CLS, if there is one, and on average from
    `count` patch tokens, both averaged over heads."""
    rows = sampled_rows(heads[0].k.shape[2], count, prefix)
    every = slice(rows.start, None, rows.step)
    graphs = [
        attention_graph(part.q[:, :, every], part.k, part.scale, _bias_of(part, every))
        for part in heads
    ]
    graph = graphs[0] if len(graphs) == 1 else torch.cat(graphs, dim=1)
    mean = graph.mean(dim=(1, 2)).detach()
    return [cls_attention(Rows(heads)), mean] if cls else [mean]


def _bias_of(part: Heads, queries: slice) -> Tensor | None:
    """Return what is added to the logits of some queries."""
    bias = part.logit_bias()
    return bias if bias is None or bias.shape[-2] == 1 else bias[..., queries, :]
