"""The fused kernels against the reference in float64: on a GPU where there is one, else in
Triton's interpreter (which knows no bfloat16)."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.families import build, images_for
from tests.methods.test_zero_tprune import image
from tests.thorough import thorough
from zerotprune import Schedule, Stage, ZeroTPrune, prune_, trace
from zerotprune.method import Seen
from zerotprune.methods import ATS, EViT, TopK
from zerotprune.scoring import graph as reference
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.graph import DenseGraph
from zerotprune.scoring.indexing import descending
from zerotprune.scoring.scorer import scorer_for
from zerotprune.scoring.similarity import nearest, split
from zerotprune.scoring.triton import fused, ranking, similarity, sums, voting

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
PRECISIONS = [torch.float32, torch.float16] + [torch.bfloat16] * GPU
BATCH = 64 if GPU else 2  # a GPU must be full: only then would threads overtake one another
# The interpreter is slow: where there is no GPU, no more than it takes to have two of each tile,
# two heads, and rounds that are the first, the last, both, neither.
HEADS = 3 if GPU else 2
IMAGES = 2 if GPU else 1  # of layers and models: kernels and a broken image are tested by two
ROUNDS = (1, 4, 5) if GPU else (1, 2, 3)
SIZES = [2, 17, 64, 70] + [3, 130, 197, 209, 577, 1370] * GPU


def in_thorough(value: Any) -> Any:
    """Mark a value that takes the interpreter long; a GPU takes them all."""
    return pytest.param(value, marks=() if GPU else thorough)


def each_once(sizes: list[int]) -> list[Any]:
    """Return every size in float32 and the last one in all precisions; a GPU
    takes all in all of them."""
    return [
        pytest.param(
            size, precision, id=f"{size}-{precision}",
            marks=thorough if not GPU and precision != torch.float32 and size != sizes[-1] else (),
        )
        for size in sizes for precision in PRECISIONS
    ]  # fmt: skip


on_a_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")


def vectors(
    tokens: int, precision: torch.dtype, width: int = 24, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Make q, k and v of some images and heads, laid out as one projection leaves them."""
    qkv = torch.randn(BATCH, tokens, 3, HEADS, width, device=DEVICE)
    qkv[:, :, :2] *= spread**0.5
    q, k, v = qkv.to(precision).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def graphs(
    tokens: int, precision: torch.dtype, **options: Any
) -> tuple[fused.FusedGraph, DenseGraph]:
    q, k, _ = vectors(tokens, precision, **options)
    scale = q.shape[-1] ** -0.5
    exact = reference.attention_graph(q.double(), k.double(), scale)
    return fused.FusedGraph(q, k, scale, sums.log_sums(q, k, scale)), DenseGraph(exact)


def error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("tokens", "precision"), each_once(SIZES))
def test_votes_are_those_of_the_graph(tokens: int, precision: torch.dtype) -> None:
    ours, exact = graphs(tokens, precision)
    for rounds in ROUNDS:
        actual = ours.vote(ours.start(3.0), rounds)
        assert error(actual, exact.vote(exact.start(3.0), rounds)) < 5e-6
        torch.testing.assert_close(actual.sum(-1), torch.ones_like(actual.sum(-1)))


@pytest.mark.parametrize(("tokens", "precision"), each_once([17, 70] + [197, 577, 1370] * GPU))
def test_votes_of_the_survivors(tokens: int, precision: torch.dtype) -> None:
    ours, exact = graphs(tokens, precision)
    for count in (1, tokens // 3):
        drawn = [torch.randperm(tokens - 1)[:count] + 1 for _ in range(BATCH)]
        dropped = torch.stack(drawn).to(DEVICE)
        small, part = ours.without(dropped), exact.without(dropped)
        for rounds in (1, 3):
            actual = small.vote(small.start(), rounds)
            assert error(actual, part.vote(part.start(), rounds)) < 5e-6
            assert (actual.gather(2, dropped.unsqueeze(1).expand(-1, HEADS, -1)) == 0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy
@pytest.mark.parametrize(
    "precision",
    [pytest.param(kind, marks=thorough if kind == torch.float16 and not GPU else ())
     for kind in PRECISIONS], ids=str,
)  # fmt: skip
def test_extreme_logits(precision: torch.dtype) -> None:
    ours, exact = graphs(50, precision, spread=100.0)
    dropped = torch.arange(1, 21, device=DEVICE).expand(BATCH, -1)
    for graph, other in ((ours, exact), (ours.without(dropped), exact.without(dropped))):
        for rounds in (1, 5):
            actual = graph.vote(graph.start(), rounds)
            assert actual.isfinite().all()
            assert error(actual, other.vote(other.start(), rounds)) < 1e-3


def test_rows_that_lose_nearly_all_their_attention() -> None:
    q, k, _ = vectors(40, torch.float32)
    q[..., 0], k[..., 0], k[:, :, 5, 0] = 6.0, 0.0, 12.0  # all attend to token 5 almost alone
    exact = DenseGraph(reference.attention_graph(q.double(), k.double(), 1.0))
    assert (exact.weights[:, :, :, 5] > 1 - 1e-9).all()
    ours = fused.FusedGraph(q, k, 1.0, sums.log_sums(q, k, 1.0))
    dropped = torch.full((BATCH, 1), 5, device=DEVICE)
    actual, expected = (
        graph.without(dropped).vote(graph.without(dropped).start(), 3) for graph in (ours, exact)
    )
    assert error(actual, expected) < 2e-5


@pytest.mark.parametrize("width", [8, in_thorough(64), 72, in_thorough(128)])
def test_heads_of_any_width(width: int) -> None:
    ours, exact = graphs(67, torch.float16, width=width)
    assert error(ours.vote(ours.start(), 2), exact.vote(exact.start(), 2)) < 5e-6
    assert error(ours.row(3), exact.row(3)) < 2e-5


@pytest.mark.parametrize("variances", [None, (0.01, 0.7), (5.0, 9.0)])
@pytest.mark.parametrize("masked", [False, True])
def test_importance(variances: tuple[float, float] | None, masked: bool) -> None:
    score = torch.rand(4, 6, 41, device=DEVICE) ** torch.arange(1, 7, device=DEVICE)[:, None]
    alive = (torch.rand(4, 41, device=DEVICE) > 0.3).float() if masked else None
    score = score if alive is None else score * alive.unsqueeze(1)
    counted, exact = None, score.double()
    if variances is not None:
        wide = None if alive is None else alive.double()
        inside = reference.head_variance(exact, 2, wide)
        counted = reference.heads_in_range(inside, *variances)
        assert variances[0] > 1 or counted.any() > counted.all()
    expected = reference.combine_heads(exact, "eir", counted)[:, 2:]
    assert error(ranking.importance(score, 2, variances, alive), expected) < 1e-6


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200] + [700] * GPU)
def test_order_is_that_of_a_stable_sort(count: int) -> None:
    values = torch.randn(5, count, device=DEVICE).round(decimals=1)
    assert torch.equal(ranking.descending(values), descending(values))
    assert torch.equal(ranking.descending(values[:, ::2]), descending(values[:, ::2]))
    values[0] = torch.nan
    values[1, ::3] = torch.nan
    values[2, 0], values[2, -1] = -torch.inf, torch.inf
    places = torch.arange(count, device=DEVICE).expand(5, -1)
    assert torch.equal(ranking.descending(values).sort(dim=-1).values, places)
    assert torch.equal(ranking.descending(values)[2:], descending(values)[2:])


@pytest.mark.parametrize(("patches", "precision"), each_once([2, 9, 70, 300] + [196, 1369] * GPU))
@pytest.mark.parametrize("width", [100] + [192, 768] * GPU)
def test_partners(width: int, patches: int, precision: torch.dtype) -> None:
    features = torch.randn(BATCH, patches, width, device=DEVICE).to(precision)
    features[:, 0] = 0.0
    group_a, group_b = split(torch.rand(BATCH, patches, device=DEVICE), "sequential-u")
    best, choice = similarity.nearest(features, group_a, group_b)
    expected, place = nearest(features.double(), group_a, group_b)
    torch.testing.assert_close(best.double(), expected, atol=1e-6, rtol=1e-5)
    blank = (group_a == 0) | (expected == 0)  # nothing is like a vector of no length
    assert torch.equal(choice[~blank], place[~blank])


@pytest.mark.parametrize(
    "method",
    [
        ZeroTPrune(),
        ZeroTPrune(order="i-s", heads="max"),
        ZeroTPrune(partition="alternate", start="uniform"),
        ZeroTPrune(partition="none-both", rescale=False, vhf_over="all", pre_vhf=True),
        ZeroTPrune(metric="dot", features="query", ranking="cls"),
        TopK("average"),
        EViT(),
        ATS(30),
    ],
    ids=repr,
)
def test_a_layer_decides_as_with_the_reference(method: Any) -> None:
    seen, _ = image(67, 1, HEADS, 16, batch=IMAGES)
    exact, part = seen.heads[0], [x.float().to(DEVICE) for x in seen.heads[0][:3]]
    heads = Heads(part[0], part[1], part[2], exact.scale, True, 0.0)
    who = scorer_for("triton", [heads])
    outputs, graph = who.attention([heads])
    tokens = seen.tokens._replace(
        x=seen.tokens.x.float().to(DEVICE), source=seen.tokens.source.to(DEVICE)
    )
    plain = DenseGraph(reference.attention_graph(exact.q, exact.k, exact.scale))
    assert error(outputs[0].cpu(), plain.weights @ exact.v) < 1e-5
    ours = Seen(tokens, tokens.x, [heads], graph, seen.geometry, who)
    seen = seen._replace(graph=plain, x_pre=seen.tokens.x)
    for stage in (Stage(3, 0.7, 0 if method == EViT() else 9, 4), Stage(11, 0.5)):
        actual, expected = method.reduce(ours, stage), method.reduce(seen, stage)
        assert actual.keep.sort().values.tolist() == expected.keep.sort().values.tolist()
        if expected.similar is not None:
            assert actual.similar is not None
            assert actual.partner is not None
            assert actual.similar.tolist() == expected.similar.tolist()
            assert expected.partner is not None
            assert actual.partner.tolist() == expected.partner.tolist()


FAMILIES = ["deit", "dinov2, registers", "eva-02, rotary", "qk norm", "siglip, no cls"]
SCHEDULE = Schedule((Stage(1, 1.0, 4, 2), Stage(2, 0.8, 4, 3), Stage(4, 0.5, rounds=1)))


@pytest.mark.parametrize(
    "family", [name if name in FAMILIES[:3:2] else in_thorough(name) for name in FAMILIES]
)
def test_a_model_prunes_as_with_the_reference(family: str) -> None:
    model = build(family).to(DEVICE).float()
    images = images_for(model, IMAGES).to(DEVICE).float()
    stages = {}
    for backend in ("reference", "triton"):
        prune_(model, SCHEDULE, backend=backend)
        with torch.inference_mode():
            stages[backend] = (model(images), [stage.fate for stage in trace(model, images)])
    assert all(map(torch.equal, stages["triton"][1], stages["reference"][1]))
    torch.testing.assert_close(stages["triton"][0], stages["reference"][0], atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy
def test_a_broken_image_disturbs_no_other() -> None:
    model = prune_(build("deit").to(DEVICE).float(), SCHEDULE, backend="triton")
    images = images_for(model, 2).to(DEVICE).float()
    with torch.inference_mode():
        alone = model(images[1:])
        images[0] = torch.nan
        actual = model(images)
    assert actual[0].isnan().all()
    torch.testing.assert_close(actual[1:], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "message"),
    [("beit, relative bias", "attention has a bias"), ("parallel things", "parallel attentions")],
)
def test_what_the_kernels_cannot_score(family: str, message: str) -> None:
    model = build(family).to(DEVICE).float()
    images = images_for(model, 2).to(DEVICE).float()
    prune_(model, SCHEDULE, backend="triton")
    with pytest.raises(ValueError, match=message):
        model(images)
    prune_(model, SCHEDULE, backend="auto")
    actual = model(images)
    prune_(model, SCHEDULE, backend="reference")
    assert torch.equal(actual, model(images))


def test_a_backend_that_is_none() -> None:
    unknown: Any = "cuda"
    with pytest.raises(ValueError, match="auto, reference, triton, got 'cuda'"):
        prune_(build("deit"), SCHEDULE, backend=unknown)


@on_a_gpu
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("width", [64, 160])
@pytest.mark.parametrize("attention", [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])
def test_sums_are_those_of_torch(attention: SDPBackend, width: int, precision: torch.dtype) -> None:
    q, k, v = vectors(197, precision, width)
    with sdpa_kernel([attention, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        out, log_sums = fused._attention(q, k, v, 0.1)
    exact = reference.attention_graph(q.double(), k.double(), 0.1)
    assert error(out, exact @ v.double()) < 1e-2
    if log_sums is not None:
        torch.testing.assert_close(log_sums, sums.log_sums(q, k, 0.1), atol=1e-4, rtol=1e-5)


@on_a_gpu
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_other_token_counts_need_no_new_code(precision: torch.dtype) -> None:
    """Compiling takes a second, and a search tries thousands of schedules."""
    kernels = (voting._round, voting._all_rounds, sums._log_sums_without, ranking._descending,
               similarity._nearest)  # fmt: skip
    model: Any = timm.create_model("deit_tiny_patch16_224", depth=4).eval().cuda().to(precision)
    images, counts = torch.randn(2, 3, 224, 224).cuda().to(precision), []
    for similar in (10, 11, 15, 16):
        prune_(model, Schedule((Stage(1, 0.97, similar, rounds=1), Stage(2, 0.95, 7, rounds=5))))
        with torch.inference_mode():
            model(images)
        counts.append(
            [sum(len(cache[0]) for cache in kernel.device_caches.values()) for kernel in kernels]
        )
    assert sum(counts[0]) > 3
    assert counts[1:] == counts[:1] * 3


@on_a_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_gpu() -> None:
    model = build("deit").cuda().half()
    images = images_for(model, 2).cuda().half()
    prune_(model, SCHEDULE, backend="triton")
    with torch.inference_mode():
        model(images)
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(images)
        finally:
            torch.cuda.set_sync_debug_mode("default")
