"""One attention of a block: its heads, its output, and its graph where somebody wants to see it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import DenseGraph, attention_graph
from .shapes import Float


class Heads(NamedTuple):
    """One attention of a block, split by heads and ready for the product of q and k."""

    q: Float[Tensor, "batch heads queries qk_width"]  # of all tokens, or of the first few
    k: Float[Tensor, "batch heads tokens qk_width"]
    v: Float[Tensor, "batch heads tokens width"]
    scale: float
    fused: bool  # does the library use fused attention here?
    dropout: float  # 0 outside training
    bias: Float[Tensor, "*any #queries tokens"] | None = None
    plain_q: Float[Tensor, "batch heads queries qk_width"] | None = None  # where a rotary position
    plain_k: Float[Tensor, "batch heads tokens qk_width"] | None = None  # turned q and k: before it
    rest: Tensor | None = None  # what the parts themselves carry from `attend` to `join`

    def biased(self, bias: Float[Tensor, "batch 1 1 tokens"] | None) -> Heads:
        """The same with something added to the logits."""
        if bias is None:
            return self
        bias = bias.to(self.q.dtype)
        return self._replace(bias=bias if self.bias is None else self.bias + bias)


def output(part: Heads) -> Float[Tensor, "batch heads queries width"]:
    """As the library computes it, fused or not."""
    if part.fused:
        return F.scaled_dot_product_attention(
            part.q, part.k, part.v, attn_mask=part.bias, dropout_p=part.dropout
        )
    logits = (part.q * part.scale) @ part.k.transpose(-2, -1)
    if part.bias is not None:
        logits = logits + part.bias
    return F.dropout(logits.softmax(dim=-1), part.dropout) @ part.v


def outputs_with_graph(heads: list[Heads]) -> tuple[list[Tensor], DenseGraph]:
    """Each attention's output, and the graph of all their heads written down."""
    graphs = [attention_graph(part.q, part.k, part.scale, part.bias) for part in heads]
    outputs = [
        F.dropout(graph, part.dropout).to(part.v.dtype) @ part.v
        for graph, part in zip(graphs, heads, strict=True)
    ]
    graph = graphs[0] if len(graphs) == 1 else torch.cat(graphs, dim=1)
    return outputs, DenseGraph(graph.detach())
