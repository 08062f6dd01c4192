"""The whole pruning layer against its float64 NumPy twin, over every option of the paper."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.families import plain_geometry
from tests.oracle import Layer, pruning_layer
from zerotprune import Stage, ZeroTPrune, methods
from zerotprune.method import Seen
from zerotprune.scoring import graph
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.indexing import select
from zerotprune.scoring.similarity import Partition
from zerotprune.tokens import Reduction, Tokens

DEPTH = 12


def image(tokens: int, prefix: int, heads: int, width: int, batch: int = 1) -> tuple[Seen, Tensor]:
    """Make what a block might have seen, in float64, with keys clustered as in real images."""
    centers = torch.randn(batch, heads, 4, width, dtype=torch.float64)
    which = torch.randint(4, (batch, 1, tokens, 1)).expand(-1, heads, -1, width)
    k = centers.gather(2, which) + 0.5 * torch.randn(batch, heads, tokens, width).double()
    q = torch.randn(batch, heads, tokens, width, dtype=torch.float64)
    v = torch.randn(batch, heads, tokens, width, dtype=torch.float64)
    attention = graph.attention_graph(q, k, 1.5 * width**-0.5)
    x = torch.randn(batch, tokens, heads * width, dtype=torch.float64)
    pre = torch.randn(batch, tokens, heads * width, dtype=torch.float64)
    source = torch.arange(tokens - prefix).expand(batch, -1)
    history = torch.rand(batch, tokens - prefix, dtype=torch.float64)
    split = Heads(q, k, v, width**-0.5, True, 0.0)
    geometry = plain_geometry(DEPTH, 6, prefix, heads * width)
    seen = Seen(
        Tokens(x, source, False, history), pre, [split], graph.DenseGraph(attention), geometry
    )
    return seen, attention


def twin(seen: Seen, stage: Stage, method: ZeroTPrune, at: int = 0) -> Layer:
    prefix = seen.prefix
    vectors = {
        "key": seen.heads[0].k,
        "query": seen.heads[0].q,
        "value": seen.heads[0].v,
    }
    if method.features in vectors:
        chosen = vectors[method.features][at].transpose(0, 1).flatten(1)
    else:
        chosen = (seen.x_pre if method.features == "x-pre" else seen.tokens.x)[at]
    options: dict[str, Any] = {
        name: getattr(method, name)
        for name in (
            "cls_weight",
            "heads",
            "vhf",
            "order",
            "partition",
            "metric",
            "ranking",
            "rescale",
            "vhf_over",
            "pre_vhf",
        )
    }
    cls = seen.geometry.cls
    assert isinstance(seen.graph, graph.DenseGraph)
    assert seen.tokens.history is not None
    return pruning_layer(
        seen.graph.weights[at].numpy(),
        chosen[prefix:].numpy(),
        prefix=prefix,
        cls=cls,
        keep=stage.keep,
        similar=stage.similar,
        rounds=stage.votes(DEPTH),
        start="cls" if method.start in ("auto", "cls") and cls else "uniform",
        pre_start=method.pre_start if method.pre_start != "auto" else "cls" if cls else "uniform",
        noise=_noise(seen, stage, method),
        history=seen.tokens.history[at].numpy() - _received(seen, at),
        **options,
    )


def _received(seen: Seen, at: int) -> Any:
    """Return the attention received in this block: our history holds it already, the twin adds
    it."""
    assert isinstance(seen.graph, graph.DenseGraph)
    return seen.graph.weights[at].mean(dim=(0, 1))[seen.prefix :].numpy()


def _noise(seen: Seen, stage: Stage, method: ZeroTPrune) -> Any:
    if "random" not in (method.ranking, method.partition):
        return None
    seed = method.seed * 4096 + stage.block
    seed = seed if method.ranking == "random" else -seed
    return graph.noise(seen.patches, seed, torch.device("cpu")).double().numpy()


def agree(ours: Reduction, theirs: Layer, at: int = 0) -> None:
    assert sorted(ours.keep[at].tolist()) == theirs.kept.tolist()
    similar = [] if ours.similar is None else ours.similar[at].tolist()
    partner = [] if ours.partner is None else ours.partner[at].tolist()
    assert similar == theirs.similar.tolist()
    assert partner == theirs.partner.tolist()
    if theirs.pre_importance is not None:
        assert ours.pre_importance is not None
        np.testing.assert_allclose(ours.pre_importance[at], theirs.pre_importance, rtol=1e-9)
    if theirs.importance is not None:
        assert ours.importance is not None
        seen = ~np.isnan(theirs.importance)
        expected = theirs.importance[seen]
        np.testing.assert_allclose(ours.importance[at].numpy()[seen], expected, rtol=1e-6)


options = st.fixed_dictionaries(
    {
        "start": st.sampled_from(["auto", "uniform"]),
        "pre_start": st.sampled_from(["auto", "uniform"]),
        "cls_weight": st.none() | st.floats(1.0, 300.0),
        "heads": st.sampled_from(["eir", "mean", "max"]),
        "vhf": st.none() | st.sampled_from([(0.01, 0.7), (0.1, 0.2), (5.0, 6.0)]),
        "order": st.sampled_from(["i-s-i", "i-s"]),
        "features": st.sampled_from(["key", "query", "value", "x-pre", "x-mid", "x"]),
        "partition": st.sampled_from(get_args(Partition)),
        "metric": st.sampled_from(
            ["cosine", "dot"] + [f"minkowski-{p}" for p in (1, 2, 3, 4, 5, "inf")]
        ),
        "ranking": st.sampled_from(["wpr", "wpr", "cls", "average", "accumulated", "random"]),
        "rescale": st.booleans(),
        "vhf_over": st.sampled_from(["patches", "all"]),
        "pre_vhf": st.booleans(),
    }
)


@settings(max_examples=300, deadline=None)
@given(
    options,
    st.integers(0, 3),
    st.integers(6, 40),
    st.integers(1, 4),
    st.sampled_from([0.3, 0.5, 0.77, 0.9, 1.0]),
    st.integers(0, 3),
    st.sampled_from([1, 5, 30]),
    st.integers(0, 10_000),
)
def test_layer_equals_its_twin(
    chosen: dict[str, Any],
    prefix: int,
    patches: int,
    heads: int,
    keep: float,
    similar: int,
    rounds: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    if prefix == 0:
        chosen = chosen | {"ranking": "wpr" if chosen["ranking"] == "cls" else chosen["ranking"]}
    method, stage = ZeroTPrune(**chosen), Stage(4, keep, similar, rounds)
    if not stage.prunes or similar > stage.share(patches) // 2:
        return
    seen, _ = image(prefix + patches, prefix, heads, 6)
    agree(method.reduce(seen, stage), twin(seen, stage, method))


@pytest.mark.parametrize("order", ["i-s-i", "i-s"])
def test_random_partition(order: Any) -> None:
    method, stage = ZeroTPrune(partition="random", order=order), Stage(4, 1.0, 6)
    seen, _ = image(31, 1, 3, 6)
    agree(method.reduce(seen, stage), twin(seen, stage, method))


def test_float32_layer_at_deit_size_equals_its_float64_twin() -> None:
    method = ZeroTPrune()
    seen, _ = image(197, 1, 3, 16, batch=2)
    narrow = _narrow(seen)
    for stage in (Stage(1, 1.0, 10), Stage(3, 0.9, 10, 5), Stage(6, 0.6, 20), Stage(11, 0.5)):
        for at in range(2):
            ours, theirs = method.reduce(narrow, stage), twin(seen, stage, method, at)
            assert sorted(ours.keep[at].tolist()) == theirs.kept.tolist()


def _narrow(seen: Seen) -> Seen:
    assert isinstance(seen.graph, graph.DenseGraph)
    assert seen.tokens.history is not None
    split = seen.heads[0]
    q, k, v = split.q.float(), split.k.float(), split.v.float()
    tokens = seen.tokens._replace(x=seen.tokens.x.float(), history=seen.tokens.history.float())
    heads = [split._replace(q=q, k=k, v=v)]
    graphs = graph.DenseGraph(seen.graph.weights.float())
    return seen._replace(tokens=tokens, x_pre=seen.x_pre.float(), heads=heads, graph=graphs)


@pytest.mark.parametrize("by", ["cls", "average", "accumulated", "random"])
def test_top_k_keeps_what_the_ranking_would(by: Any) -> None:
    seen, _ = image(31, 1, 3, 6)
    stage = Stage(4, 0.6)
    ours = methods.TopK(by).reduce(seen, stage)
    agree(ours, twin(seen, stage, ZeroTPrune(ranking=by)))


def test_counts_are_those_promised() -> None:
    seen, _ = image(40, 1, 3, 6, batch=3)
    for method in (ZeroTPrune(), ZeroTPrune(order="i-s"), methods.TopK(), methods.Slicing()):
        for stage in (Stage(4, 0.5, 3), Stage(4, 0.77), Stage(4, 1.0, 5)):
            keep = method.reduce(seen, stage).keep
            assert keep.shape == (3, method.kept(stage, seen.patches))
            assert all(len(set(row)) == len(row) for row in keep.tolist())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"metric": "euclid"}, "'metric' of .* must be one of cosine, dot"),
        ({"vhf": (0.7, 0.01)}, "vhf must be two variances"),
        ({"cls_weight": 0.0}, "cls_weight must be a positive number"),
    ],
)
def test_unknown_options_are_named(option: dict[str, Any], message: str) -> None:
    method = ZeroTPrune()
    for name, value in option.items():
        object.__setattr__(method, name, value)
    with pytest.raises(ValueError, match=message):
        method.__post_init__()


@pytest.mark.parametrize("option", [{"ranking": "random"}, {"partition": "random"}])
def test_a_draw_of_its_own_is_the_image_s_alone(option: dict[str, Any]) -> None:
    seen, _ = image(40, 1, 3, 6, batch=4)
    method, stage = ZeroTPrune(draw="image", **option), Stage(4, 0.5, 6)
    drawn = method.reduce(seen, stage)
    assert len({tuple(sorted(row)) for row in drawn.keep.tolist()}) == 4
    assert isinstance(seen.graph, graph.DenseGraph)
    alone = seen._replace(
        tokens=select(seen.tokens, slice(2, 3)),
        x_pre=seen.x_pre[2:3],
        heads=[seen.heads[0].select(slice(2, 3))],
        graph=graph.DenseGraph(seen.graph.weights[2:3]),
    )
    assert torch.equal(method.reduce(alone, stage).keep, drawn.keep[2:3])
