"""The graph's functions: properties, and the paper's example."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from zerotprune.scoring import graph as g


def random_graph(batch: int, heads: int, tokens: int, sharpness: float = 2.0) -> Tensor:
    logits = sharpness * torch.randn(batch, heads, tokens, tokens, dtype=torch.float64)
    return logits.softmax(dim=-1)


sizes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(2, 24))


def test_paper_example_ranks_a_b_c() -> None:
    scores = torch.tensor([[[9.0, 9.0, 3.0], [9.0, 0.0, 3.0], [9.0, 0.0, 3.0]]])
    a, b, c = g.combine_heads(scores, "eir")[0].tolist()
    assert a > b > c
    assert (a, b, c) == pytest.approx((9.0, 27**0.5, 3.0))
    assert g.combine_heads(scores, "mean")[0].tolist() == pytest.approx([9.0, 3.0, 3.0])
    assert g.combine_heads(scores, "max")[0].tolist() == pytest.approx([9.0, 9.0, 3.0])


@given(sizes, st.integers(1, 30))
def test_scores_sum_to_one(size: tuple[int, int, int], rounds: int) -> None:
    graph = random_graph(*size)
    score = g.vote(graph, g.start_scores(graph, 3.0), rounds)
    torch.testing.assert_close(score.sum(-1), torch.ones_like(score.sum(-1)))
    assert (score >= 0).all()


@given(sizes, st.integers(1, 8))
def test_votes_follow_a_permutation(size: tuple[int, int, int], rounds: int) -> None:
    graph = random_graph(*size)
    order = torch.randperm(size[2])
    shuffled = graph[:, :, order][..., order]
    score = g.vote(graph, g.start_scores(graph), rounds)
    moved = g.vote(shuffled, g.start_scores(shuffled), rounds)
    torch.testing.assert_close(moved, score[..., order])


@given(sizes, st.integers(1, 8), st.data())
def test_voting_among_the_living_equals_the_cut_out_graph(
    size: tuple[int, int, int], rounds: int, data: st.DataObject
) -> None:
    batch, heads, tokens = size
    graph = random_graph(batch, heads, tokens)
    dead = data.draw(st.integers(0, tokens - 1))
    living = torch.stack([torch.randperm(tokens)[dead:].sort().values for _ in range(batch)])
    alive = torch.zeros(batch, tokens, dtype=graph.dtype).scatter(1, living, 1.0)
    score = g.vote(graph, g.start_scores(graph, None, alive), rounds, alive)
    for image in range(batch):
        keep = living[image]
        small = graph[image][:, keep][..., keep]
        small = (small / small.sum(-1, keepdim=True)).unsqueeze(0)
        expected = g.vote(small, g.start_scores(small), rounds)[0]
        torch.testing.assert_close(score[image][:, keep], expected)
    assert (score * (1 - alive.unsqueeze(1)) == 0).all()


def test_many_rounds_forget_the_start() -> None:
    graph = random_graph(2, 3, 50)
    uniform = g.vote(graph, g.start_scores(graph), 30)
    from_cls = g.vote(graph, g.start_scores(graph, 200.0), 30)
    torch.testing.assert_close(uniform, from_cls)


def test_a_row_that_lost_all_its_attention_casts_no_vote() -> None:
    graph = torch.zeros(1, 1, 3, 3)
    graph[..., 0, 2] = graph[..., 1, 1] = graph[..., 2, 0] = 1.0
    alive = torch.tensor([[1.0, 1.0, 0.0]])
    score = g.vote(graph, g.start_scores(graph, None, alive), 2, alive)
    torch.testing.assert_close(score, torch.tensor([[[0.0, 1.0, 0.0]]]))


def test_variance_is_taken_at_mean_one() -> None:
    score = torch.tensor([[[0.5, 0.1, 0.3, 0.1]]])  # the first is a prefix token
    expected = torch.tensor([0.6, 1.8, 0.6]).var(correction=0)
    torch.testing.assert_close(g.head_variance(score, 1)[0, 0], expected)
    alive = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    masked = torch.tensor([[[0.5, 0.1, 0.3, 0.0]]])
    expected = torch.tensor([0.5, 1.5]).var(correction=0)
    torch.testing.assert_close(g.head_variance(masked, 1, alive)[0, 0], expected)


def test_head_filter_falls_back_to_all_heads() -> None:
    variance = torch.tensor([[0.005, 0.02, 0.9], [0.001, 0.9, 5.0]])
    counted = g.heads_in_range(variance, 0.01, 0.7)
    assert counted.tolist() == [[False, True, False], [True, True, True]]
    scores = torch.rand(2, 3, 4)
    importance = g.combine_heads(scores, "eir", counted)
    torch.testing.assert_close(importance[0], scores[0, 1])
    torch.testing.assert_close(importance[1], scores[1].square().mean(0).sqrt())


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_scores_are_float32_under_half_precision(precision: torch.dtype) -> None:
    q, k = (torch.randn(2, 3, 20, 8).to(precision) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = g.attention_graph(q, k, 8**-0.5)
    assert graph.dtype == torch.float32
    exact = (q.double() @ k.double().transpose(-2, -1) * 8**-0.5).softmax(-1)
    torch.testing.assert_close(graph.double(), exact, atol=1e-6, rtol=1e-5)


def test_extreme_logits_stay_finite() -> None:
    q = 1e3 * torch.randn(1, 2, 30, 8)
    graph = g.attention_graph(q, q, 1.0)
    alive = torch.ones(1, 30)
    alive[:, ::3] = 0.0
    score = g.vote(graph, g.start_scores(graph, 5.0, alive), 30, alive)
    assert score.isfinite().all()


def test_noise_is_uniform_and_repeats() -> None:
    device = torch.device("cpu")
    drawn = g.noise(20_000, 7, device)
    assert torch.equal(drawn, g.noise(20_000, 7, device))
    assert not torch.equal(drawn, g.noise(20_000, 8, device))
    assert drawn.unique().numel() > 19_900
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.var() - 1 / 12) < 0.005
    following = torch.corrcoef(torch.stack((drawn[1:], drawn[:-1])))[0, 1]
    assert following.abs() < 0.03
