"""One attention of a block: its heads, its output, and as much of its graph as a method wants."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..shapes import Float
from .graph import (
    ColumnGraph,
    DenseGraph,
    attention_graph,
    average_attention,
    cls_attention,
    is_autocast,
    no_autocast,
    widen,
)
from .indexing import select


class Heads(NamedTuple):
    """One attention of a block, split by heads and ready for the product of q and k."""

    q: Float[Tensor, "batch heads queries qk_width"]  # of all tokens, or of the first few
    k: Float[Tensor, "batch heads tokens qk_width"]
    v: Float[Tensor, "batch heads tokens width"]
    scale: float
    fused: bool  # does the library use fused attention here?
    dropout: float  # 0 outside training
    bias: Float[Tensor, "*any #queries tokens"] | None = None
    size: Float[Tensor, "batch tokens"] | None = None  # attention is proportional to it
    plain_q: Float[Tensor, "batch heads queries qk_width"] | None = None  # before rotary …
    plain_k: Float[Tensor, "batch heads tokens qk_width"] | None = None  # … positions
    rest: Tensor | None = None  # whatever the parts carry from `attend` to `join`
    scales_logits: bool = False  # if not fused: is q @ k scaled, and not q?

    def select(self, images: slice) -> Heads:
        """Take some images of the batch. All images may share one bias."""
        bias, size = self.bias, self.size
        if bias is not None and bias.dim() == 4 and len(bias) == len(self.q):
            bias = bias[images]
        return Heads(
            self.q[images], self.k[images], self.v[images],
            self.scale, self.fused, self.dropout,
            bias, None if size is None else size[images],
            select(self.plain_q, images), select(self.plain_k, images),
            select(self.rest, images), self.scales_logits,
        )  # fmt: skip

    def logit_bias(self) -> Float[Tensor, "*any #queries tokens"] | None:
        """Return what is added to the logits: the bias and the logarithm of the sizes."""
        if self.size is None:
            return self.bias
        log_size = self.size.log()[:, None, None]
        return log_size if self.bias is None else self.bias + log_size


def output(attn: Heads) -> Float[Tensor, "batch heads queries width"]:
    """Compute attention as the library does, fused or not."""
    bias = attn.logit_bias()
    if bias is not None and bias.dtype != attn.q.dtype:
        bias = bias.to(attn.q.dtype)
    if attn.fused:
        return F.scaled_dot_product_attention(
            attn.q, attn.k, attn.v, attn_mask=bias, dropout_p=attn.dropout
        )
    if attn.scales_logits:
        logits = attn.q @ attn.k.transpose(-2, -1) * attn.scale
    else:
        logits = (attn.q * attn.scale) @ attn.k.transpose(-2, -1)
    if bias is not None:
        logits = logits + bias
    return F.dropout(logits.softmax(dim=-1), attn.dropout) @ attn.v


def attention_weights(heads: list[Heads]) -> Float[Tensor, "batch heads queries tokens"]:
    """Return the attention weights of all heads."""
    graphs = [attention_graph(attn.q, attn.k, attn.scale, attn.logit_bias()) for attn in heads]
    return graphs[0] if len(graphs) == 1 else torch.cat(graphs, dim=1)


def weigh_values(
    weights: Float[Tensor, "batch heads queries tokens"], heads: list[Heads]
) -> list[Float[Tensor, "batch some_heads queries width"]]:
    """Return the output of each attention from the weights of all heads."""
    if len(heads) == 1:
        return [_weigh(weights, heads[0])]
    graphs = weights.split([attn.v.shape[1] for attn in heads], dim=1)
    return [_weigh(graph, attn) for graph, attn in zip(graphs, heads, strict=True)]


def _weigh(weights: Tensor, attn: Heads) -> Float[Tensor, "batch heads queries width"]:
    if attn.dropout:
        weights = F.dropout(weights, attn.dropout)
    if weights.dtype != attn.v.dtype:
        weights = weights.to(attn.v.dtype)
    return weights @ attn.v


def outputs_with_graph(heads: list[Heads]) -> tuple[list[Tensor], DenseGraph]:
    """Compute each attention, and keep the graph of all their heads in memory."""
    weights = attention_weights(heads)
    return weigh_values(weights, heads), DenseGraph(weights.detach())


class ColumnSums(NamedTuple):
    """The first row of a graph, and the sums of its columns, both summed over heads."""

    sums: Float[Tensor, "batch 2 tokens"]
    num_heads: int

    @classmethod
    def of(
        cls,
        first: Float[Tensor, "batch heads tokens"],
        received: Float[Tensor, "batch heads tokens"],
    ) -> ColumnSums:
        return cls(torch.stack((first, received), dim=1).sum(dim=2), first.shape[1])

    @property
    def alive(self) -> None:
        return None

    def row(self, token: int) -> Float[Tensor, "batch 1 tokens"]:
        """Return the mean over heads, as if it were one head."""
        if token:
            raise ValueError(f"only the row of token 0 was kept, got {token}")
        return self.sums[:, :1] / self.num_heads

    def received(self) -> Float[Tensor, "batch 1 tokens"]:
        """Return the mean over heads, as if it were one head."""
        return self.sums[:, 1:] / (self.num_heads * self.sums.shape[-1])


def cls_and_received(graph: ColumnGraph) -> Float[Tensor, "batch 2 tokens"]:
    """Return the attention that each token receives from CLS and from all tokens. Each has a factor
    of its own."""
    if isinstance(graph, ColumnSums):
        return graph.sums
    return torch.stack((cls_attention(graph), average_attention(graph)), dim=1)


def outputs_with_sums(heads: list[Heads]) -> tuple[list[Tensor], ColumnSums]:
    """Compute each attention, with the sums of its graph.

    The graph is written to memory: on a CPU that is as fast as fused attention, and summing a graph
    in the cache costs next to nothing.
    """
    outputs, sums = [], []
    for attn in heads:
        graph, rows = _graph_with_sums(attn)
        outputs.append(_weigh(graph, attn))
        sums.append(rows)
    if len(heads) == 1:
        return outputs, ColumnSums(sums[0], heads[0].q.shape[1])
    return outputs, ColumnSums(torch.stack(sums).sum(dim=0), sum(attn.q.shape[1] for attn in heads))


def _graph_with_sums(
    attn: Heads,
) -> tuple[Float[Tensor, "batch heads tokens tokens"], Float[Tensor, "batch 2 tokens"]]:
    if is_autocast(attn.q):
        with no_autocast(attn.q):
            return _graph_with_sums(attn)
    (batch, num_heads, tokens, _), bias = attn.q.shape, attn.logit_bias()
    q, k = widen(attn.q).flatten(0, 1), widen(attn.k).flatten(0, 1).transpose(1, 2)
    if bias is None:
        logits = torch.bmm(q * attn.scale, k)
    else:
        height = bias.shape[-2]
        bias = bias.expand(batch, num_heads, height, tokens)
        bias = bias.reshape(batch * num_heads, height, tokens)
        if bias.dtype != q.dtype:
            bias = bias.to(q.dtype)
        logits = torch.baddbmm(bias, q, k, alpha=attn.scale)
    graph = logits.softmax(dim=-1).view(batch, num_heads, tokens, tokens)
    seen = graph.detach() if graph.requires_grad else graph
    # One product sums over heads and queries.
    ones = seen.new_ones(batch, 1, num_heads * tokens)
    received = torch.bmm(ones, seen.view(batch, num_heads * tokens, tokens))
    return graph, torch.cat((seen[:, :, 0].sum(dim=1, keepdim=True), received), dim=1)


class Rows:
    """A graph that computes single rows on demand and nothing else."""

    alive = None

    def __init__(self, heads: list[Heads]) -> None:
        self.heads = heads

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        """Return the attention that one token pays to all."""
        if len(self.heads) == 1:
            return _row(self.heads[0], token)
        return torch.cat([_row(attn, token) for attn in self.heads], dim=1)


def _row(attn: Heads, token: int) -> Float[Tensor, "batch heads tokens"]:
    query = slice(token, token + 1)
    bias = _bias_for(attn, query)
    return attention_graph(attn.q[:, :, query], attn.k, attn.scale, bias).squeeze(2).detach()


def sampled_rows(tokens: int, count: int, prefix: int) -> range:
    """Return a sample of at least `count` patch tokens, if there are as many, spread evenly.

    >>> sampled_rows(197, count=32, prefix=1)
    range(4, 197, 6)
    """
    step = max(1, (tokens - prefix) // count)
    return range(prefix + step // 2, tokens, step)


def sampled_attention(
    heads: list[Heads], count: int, prefix: int, cls: bool
) -> list[Float[Tensor, "batch tokens"]]:
    """Return the attention that each token receives from CLS, if `cls`, and its mean from a sample
    of `count` patch tokens, both averaged over heads."""
    rows = sampled_rows(heads[0].k.shape[2], count, prefix)
    queries = slice(rows.start, None, rows.step)
    graphs = [
        attention_graph(attn.q[:, :, queries], attn.k, attn.scale, _bias_for(attn, queries))
        for attn in heads
    ]
    return _with_cls(graphs, heads, cls)


def pooled_attention(
    heads: list[Heads], count: int, prefix: int, cls: bool
) -> list[Float[Tensor, "batch tokens"]]:
    """Return the attention that each token receives from CLS, if `cls`, and its mean from `count`
    queries, each the mean over a run of patch tokens; both averaged over heads."""
    patches = heads[0].k.shape[2] - prefix
    count = min(count, patches)
    run = torch.arange(patches, device=heads[0].q.device) * count // patches
    pool = F.one_hot(run, count).T.to(heads[0].q.dtype)
    pool = pool / pool.sum(dim=1, keepdim=True)
    graphs = []
    for attn in heads:
        bias = attn.logit_bias()
        if bias is not None and bias.shape[-2] > 1:
            bias = pool.to(bias.dtype) @ bias[..., prefix:, :]
        graphs.append(attention_graph(pool @ attn.q[:, :, prefix:], attn.k, attn.scale, bias))
    return _with_cls(graphs, heads, cls)


def _with_cls(
    graphs: list[Float[Tensor, "batch some_heads queries tokens"]], heads: list[Heads], cls: bool
) -> list[Float[Tensor, "batch tokens"]]:
    """Return the attention from CLS, if `cls`, and the mean over heads and queries of `graphs`."""
    graph = graphs[0] if len(graphs) == 1 else torch.cat(graphs, dim=1)
    mean = graph.mean(dim=(1, 2)).detach()
    return [cls_attention(Rows(heads)), mean] if cls else [mean]


def _bias_for(attn: Heads, queries: slice) -> Tensor | None:
    """Return what is added to the logits of some queries."""
    bias = attn.logit_bias()
    return bias if bias is None or bias.shape[-2] == 1 else bias[..., queries, :]
