"""The sums of an attention graph, against the graph itself in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zerotprune.scoring.attention import Heads, cls_and_received, outputs_with_sums
from zerotprune.scoring.graph import average_attention, cls_attention

TOKENS, WIDTH = 7, 4


def random_heads(batch: int, count: int, sized: bool) -> Heads:
    q, k, v = (torch.randn(batch, TOKENS, count, WIDTH).transpose(1, 2) for _ in range(3))
    size = torch.randint(1, 5, (batch, TOKENS)).float() if sized else None
    return Heads(q, k, v, 0.3, fused=True, dropout=0.0, size=size)


def graph_of(heads: Heads) -> np.ndarray:
    q, k = (part.double().numpy() for part in (heads.q, heads.k))
    weights = np.exp(0.3 * q @ k.swapaxes(-2, -1))
    if heads.size is not None:
        weights *= heads.size.double().numpy()[:, None, None]
    graph: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return graph


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("counts", [(3,), (3, 1)], ids=["one attention", "parallel attentions"])
@pytest.mark.parametrize("sized", [False, True])
def test_sums_over_heads_and_queries(batch: int, counts: tuple[int, ...], sized: bool) -> None:
    heads = [random_heads(batch, count, sized) for count in counts]
    outputs, columns = outputs_with_sums(heads)
    graphs = [graph_of(attn) for attn in heads]
    for output, graph, attn in zip(outputs, graphs, heads, strict=True):
        np.testing.assert_allclose(output, graph @ attn.v.double().numpy(), atol=1e-5)
    graph = np.concatenate(graphs, axis=1)
    first, received = graph[:, :, 0].mean(axis=1), graph.mean(axis=(1, 2))
    np.testing.assert_allclose(cls_attention(columns), first, rtol=1e-5)
    np.testing.assert_allclose(average_attention(columns), received, rtol=1e-5)
    both = cls_and_received(columns)
    shares = np.stack((first, received), axis=1)
    shares /= shares.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(both / both.sum(dim=-1, keepdim=True), shares, rtol=1e-5)


def test_only_the_first_row_is_kept() -> None:
    _, columns = outputs_with_sums([random_heads(1, 2, False)])
    with pytest.raises(ValueError, match="row of token 0"):
        columns.row(1)
