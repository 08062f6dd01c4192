"""What every method must be: idle where nothing is to do, one image at a time, counted, traced."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import pytest
import torch

import zerotprune as ztp
from tests.families import build, images_for
from tests.methods.rivals import (
    DEPTH,
    ONE_PER_METHOD,
    PATCHES,
    PLAIN,
    all_cases,
    all_cases_in,
    every,
    merging,
    one_per_method,
    promised,
    spared,
    twin,
)
from tests.nursery import run_script
from tests.test_cost import counted_by_torch
from tests.thorough import THOROUGH, thorough
from zerotprune.method import Method
from zerotprune.methods import ATC, ATS, MCTF, AViT, DiffRate, DynamicViT, EViT, Fold, ToMe, TopK
from zerotprune.tracing import Fate

IDLE: list[tuple[Method, ztp.Schedule]] = [
    (ToMe(), merging(0, 0, 0, 0, 0)),
    (MCTF(), merging(0, 0, 0, 0, 0)),
    (ATC(), merging(0, 0, 0, 0, 0)),
    (EViT(), every((1.0, 0), (1.0, 0))),
    (DiffRate(), every((1.0, 0), (1.0, 0))),
    (TopK("cls"), every((1.0, 0), (1.0, 0))),
    (TopK("accumulated"), every((1.0, 0), (1.0, 0))),
    (DynamicViT(), every((1.0, 0), (1.0, 0))),
]


@pytest.mark.parametrize(("method", "schedule"), IDLE, ids=[str(method) for method, _ in IDLE])
@pytest.mark.parametrize("family", PLAIN)
def test_with_nothing_to_do_no_bit_changes(
    family: str, method: Method, schedule: ztp.Schedule
) -> None:
    model: Any = build(family)
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        ztp.prune_(model, schedule.by(method))
        assert torch.equal(model(images), before)


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        (EViT(), every((0.98, 0), (0.98, 0))),  # all are attentive, only their order changes
        (ATS(samples=10**5), every((0.5, 0), (0.5, 0))),  # every token is drawn
        (AViT(beta=-1e4), every((0.5, 0), (0.5, 0))),  # none ever halts
    ],
    ids=str,
)
def test_where_all_tokens_stay_only_rounding_changes(
    method: Method, schedule: ztp.Schedule
) -> None:
    model: Any = build("deit").double()
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        ztp.prune_(model, schedule.by(method))
        torch.testing.assert_close(model(images), before)


def test_ats_samples_at_every_stage_whatever_its_numbers() -> None:
    """ "The stage's own numbers are not used, only its place.\""""
    model: Any = build("deit").double()
    images = images_for(model)
    with torch.inference_mode():
        ztp.prune_(model, ztp.Schedule((ztp.Stage(2, 0.5),)).by(ATS(samples=10)))
        expected = model(images)
        ztp.prune_(model, ztp.Schedule((ztp.Stage(2),)).by(ATS(samples=10)))
        assert torch.equal(model(images), expected)


@one_per_method
@pytest.mark.parametrize("family", ["deit", pytest.param("deit distilled", marks=thorough)])
def test_an_image_does_not_depend_on_its_batch(
    family: str, method: Method, schedule: ztp.Schedule
) -> None:
    model: Any = build(family).double()
    images = images_for(model, 9)  # the CPU takes 8 images at a time
    ztp.prune_(model, schedule.by(method))
    with torch.inference_mode():
        together = model(images)
        for at in (0, 5, 8):
            alone = model(images[at : at + 1])[0]
            torch.testing.assert_close(together[at], alone, rtol=1e-10, atol=1e-12)


@all_cases_in("deit", "deit distilled", few=True)
def test_gmacs_are_what_torch_counts(family: str, method: Method, schedule: ztp.Schedule) -> None:
    """Count a padded batch, where images keep different numbers."""
    model: Any = build(family)
    for compute in ("all", "needed"):
        ztp.prune_(model, schedule.by(method), compute=compute)
        closed = round(ztp.gmacs(model, compute=compute) * 1e9)
        prefix, every_row = model.num_prefix_tokens, compute == "needed"
        extra = 0 if every_row else spared(method, schedule, prefix)
        assert closed == counted_by_torch(model) - extra


@one_per_method
def test_copy_and_pickle(method: Method, schedule: ztp.Schedule) -> None:
    model: Any = ztp.prune_(build("deit"), schedule.by(method))
    images = images_for(model)
    assert pickle.loads(pickle.dumps(method)) == method
    assert hash(copy.deepcopy(method)) == hash(method)
    with torch.inference_mode():
        expected = model(images)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(images), expected)
            assert ztp.gmacs(other) == ztp.gmacs(model)
            ztp.restore_(other)
            assert not torch.equal(other(images), expected)
            assert torch.equal(model(images), expected)


@all_cases_in("deit", "deit distilled", few=True)
def test_trace_tells_what_the_twin_kept(
    family: str, method: Method, schedule: ztp.Schedule
) -> None:
    """Check every stage before an attention: after the last one nothing reads the patch tokens."""
    model: Any = build(family).double()
    images = images_for(model)
    ztp.prune_(model, schedule.by(method))
    traces = ztp.trace(model, images)
    end = DEPTH + (method.acts == "start")
    acting = [stage.block for stage in schedule.stages if stage.prunes and stage.block < end]
    assert [trace.block for trace in traces] == acting
    for at, image in enumerate(images):
        left = twin(model, image, schedule, method).left
        groups = {patch: [patch] for patch in range(PATCHES)}
        for trace in traces:
            tokens, kept = left[trace.block], trace.where(Fate.KEPT)[at]
            if isinstance(method, EViT):  # the extra token is no patch that was kept: see below
                tokens = [token for token in tokens if token.place in kept]
                assert len(tokens) >= len(left[trace.block]) - 1
            assert kept == sorted(token.place for token in tokens)
            for patch in trace.where(Fate.SIMILAR)[at]:
                groups[int(trace.partner[at, patch])] += groups.pop(patch)
            if not isinstance(method, EViT):
                theirs = {token.place: sorted(token.patches) for token in tokens}
                assert {patch: sorted(groups[patch]) for patch in kept} == theirs


@all_cases
def test_in_a_trace_nobody_returns(method: Method, schedule: ztp.Schedule) -> None:
    """As many patches are KEPT as tokens are left; EViT's extra token has a fused patch's place."""
    model: Any = ztp.prune_(build("deit"), schedule.by(method))
    traces, counts = ztp.trace(model, images_for(model)), promised(method, schedule)
    for trace in traces:
        kept = (trace.fate == Fate.KEPT).sum(dim=1)
        if method.adaptive:
            assert (kept >= 1).all()
            assert (kept <= counts[trace.block]).all()
        else:
            assert (kept == counts[trace.block]).all()
    for before, after in pairwise(traces):
        assert torch.equal(before.fate != Fate.KEPT, after.fate == Fate.GONE)


@pytest.mark.parametrize(
    ("family", "method", "stage", "message"),
    [
        ("siglip, no cls", EViT(), ztp.Stage(2, 0.5), "EViT .* CLS"),
        ("siglip, no cls", DiffRate(), ztp.Stage(2, 0.5), "DiffRate .* CLS"),
        ("siglip, no cls", ATS(), ztp.Stage(2, 0.5), "ATS .* CLS"),
        ("siglip, no cls", TopK("cls"), ztp.Stage(2, 0.5), "needs a CLS token"),
        ("deit", ToMe(), ztp.Stage(2, 0.5), "ToMe .*leave keep at 1"),
        ("deit", ToMe(), ztp.Stage(2, 0.5, 3), "leave keep at 1"),
        ("deit", MCTF(), ztp.Stage(2, 0.5, 3), "MCTF .*leave keep at 1"),
        ("deit", ATC(), ztp.Stage(2, 0.5, 3), "ATC .*leave keep at 1"),
        ("deit", EViT(), ztp.Stage(2, 0.5, 3), "EViT .*leave `similar` at 0"),
        ("deit", DiffRate(), ztp.Stage(2, 0.5, 18), "merges 18 tokens, .*leaves only 18"),
        ("deit", ATS(samples=0), ztp.Stage(2, 0.5), "samples must be at least 1, got 0"),
        ("deit", ATS(), ztp.Stage(5, 0.5), "ATS takes no stage at the last block"),
        ("deit", TopK("cls"), ztp.Stage(5, 0.5), "blocks 1 to 4"),
        ("deit", ToMe(), ztp.Stage(6, similar=3), "blocks 1 to 5"),
        ("siglip, no cls", AViT(), ztp.Stage(2), "this model's head does not read CLS alone"),
        ("mae, average pooling", AViT(), ztp.Stage(2), "A-ViT .* CLS alone"),
    ],
)
def test_what_a_method_cannot_do_is_refused(
    family: str, method: Method, stage: ztp.Stage, message: str
) -> None:
    model: Any = build(family)
    with pytest.raises(ValueError, match=message) as refusal:
        ztp.prune_(model, ztp.Schedule((stage,)).by(method))
    assert "\n" not in str(refusal.value)
    assert ". " not in str(refusal.value)
    assert not any("forward" in block.__dict__ for block in model.blocks)


#: The others take the same steps. DiffRate(proportional=False) has DiffRate's, and attention that
#: knows no sizes is ToMe's without.
COMPILED = [
    (method, schedule)
    for method, schedule in ONE_PER_METHOD
    if method != DiffRate(proportional=False)
    and (
        THOROUGH
        or method
        not in (ToMe(proportional=False), TopK("cls"), TopK("average"), DynamicViT(seed=3), MCTF(),
                MCTF(proportional=False),
                Fold(importance="cls", features="x", proportional=0.5))
    )
]  # fmt: skip

SCRIPT = """
import torch, zerotprune as ztp
from dataclasses import replace
from tests.families import SMALL, build, images_for
from tests.methods.test_rivals import COMPILED
from zerotprune.methods import AViT

for method, schedule in COMPILED:
    # A second stage finds what the first has left: sizes, a history, who has halted.
    leaves = method.merges or method.wants_history() or isinstance(method, AViT)
    stages = schedule.stages[: 2 if leaves else 1]
    stages = [replace(stage, block=at) for at, stage in enumerate(stages, start=1)]
    SMALL["depth"] = len(stages) + 1
    model = ztp.prune_(build("deit distilled"), ztp.Schedule(tuple(stages), method))
    images, others = images_for(model, 3), images_for(model, 3)
    graphs = []
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    with torch.inference_mode():
        expected = model(images)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        actual = compiled(images)
        compiled(others)
    assert len(graphs) == 1, (method, len(graphs))
    torch._dynamo.reset()
    torch.testing.assert_close(actual, expected)
    print("same:", method)
"""


def test_one_graph() -> None:
    """Run in a separate process: run-time type checks would break the graph."""
    assert len(run_script(SCRIPT)) == len(COMPILED)
