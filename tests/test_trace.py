"""trace: the fate of every original patch, stage by stage."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest
import torch

import zerotprune as ztp
from tests.families import build, images_for
from zerotprune.tracing import Fate

TOME = ztp.methods.ToMe()
SCHEDULE = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(2, 0.8, 4), ztp.Stage(4, 0.5)))


@pytest.fixture
def model() -> Any:
    return ztp.prune_(build("deit"), SCHEDULE)


def test_every_patch_has_one_fate_and_nobody_returns(model: Any) -> None:
    stages = ztp.trace(model, images_for(model, 3))
    assert [stage.block for stage in stages] == [1, 2, 4]
    counts = [[int((stage.fate == fate).sum(1)[0]) for fate in Fate] for stage in stages]
    #                 kept similar unimportant gone
    assert counts == [[32, 4, 0, 0], [22, 4, 6, 4], [11, 0, 11, 14]]
    for before, after in pairwise(stages):
        assert torch.equal(before.fate != Fate.KEPT, after.fate == Fate.GONE)


def test_partners_are_there_and_were_kept_by_the_matching(model: Any) -> None:
    for stage in ztp.trace(model, images_for(model, 3)):
        for row, partner in zip(stage.fate, stage.partner, strict=True):
            assert torch.equal(partner >= 0, row == Fate.SIMILAR)
            partners = partner[partner >= 0]
            assert all(row[at] in (Fate.KEPT, Fate.UNIMPORTANT) for at in partners)


def test_importance_explains_who_stays(model: Any) -> None:
    for stage in ztp.trace(model, images_for(model, 3)):
        seen = torch.tensor([Fate.KEPT, Fate.UNIMPORTANT])
        for fate, importance in zip(stage.fate, stage.importance, strict=True):
            assert importance[fate == Fate.GONE].isnan().all()
            if stage.block > 1:
                assert torch.equal(~importance.isnan(), torch.isin(fate, seen))
                least = importance[fate == Fate.KEPT].min()
                assert least >= importance[fate == Fate.UNIMPORTANT].max()
        has_s = stage.block < 4
        assert stage.pre_importance.isnan().all() != has_s


def test_trace_changes_nothing(model: Any) -> None:
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        ztp.trace(model, images)
        assert torch.equal(model(images), before)
    assert not any(block._forward_hooks for block in model.blocks)


def test_other_threads_are_not_traced(model: Any) -> None:
    mine, theirs = images_for(model, 2), images_for(model, 3)
    expected = ztp.trace(model, mine)
    stop = threading.Event()

    def busy() -> None:
        with torch.inference_mode():
            while not stop.is_set():
                model(theirs)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(5):
            traced = ztp.trace(model, mine)
            assert [stage.block for stage in traced] == [1, 2, 4]
            for one, other in zip(traced, expected, strict=True):
                assert torch.equal(one.fate, other.fate)
    finally:
        stop.set()
        thread.join()


def test_works_on_a_wrapped_model(model: Any) -> None:
    compiled: Any = torch.compile(model)
    assert len(ztp.trace(compiled, images_for(model))) == 3


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda images: images.fill_(torch.nan), ValueError, "NaN or infinite"),
        (lambda images: images.fill_(torch.inf), ValueError, "NaN or infinite"),
        (lambda images: images[:, :, :80], ValueError, "the images do not fit the model"),
        (lambda images: images[0], TypeError, r"shape \(batch, channels"),
        (lambda images: images.numpy(), TypeError, "must be a tensor"),
    ],
)
def test_bad_images(model: Any, spoil: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ztp.trace(model, spoil(images_for(model)))
    assert not any(block._forward_hooks for block in model.blocks)


@pytest.mark.parametrize("family", ["deit", "mae, average pooling"])
def test_a_stage_at_the_last_block_is_traced_where_it_runs(family: str) -> None:
    """The patches it keeps are those that leave the model."""
    schedule = ztp.Schedule((ztp.Stage(2, similar=6), ztp.Stage(5, similar=9)), TOME)
    model: Any = ztp.prune_(build(family), schedule, compute="all")
    images = images_for(model, 2)
    first, last = ztp.trace(model, images)
    assert [len(patches) for patches in first.where(Fate.KEPT)] == [30, 30]
    with ztp.patches_left(model) as left, torch.inference_mode():
        model.forward_features(images)
    assert last.where(Fate.KEPT) == [sorted(row) for row in left[-1].tolist()]
    assert [len(patches) for patches in last.where(Fate.SIMILAR)] == [9, 9]
    assert not any(block._forward_hooks for block in model.blocks)


def test_a_stage_at_the_last_block_that_does_not_run_is_not_traced() -> None:
    model: Any = ztp.prune_(build("deit"), ztp.Schedule((ztp.Stage(5, similar=9),), TOME))
    images = images_for(model, 2)
    with pytest.raises(ValueError, match=r'last block.*compute="all"'):
        ztp.trace(model, images)
    ztp.prune_(model, ztp.Schedule((ztp.Stage(2, similar=3), ztp.Stage(5, similar=9)), TOME))
    assert [stage.block for stage in ztp.trace(model, images)] == [2]


def test_an_unpruned_model_has_nothing_to_trace() -> None:
    model: Any = build("deit")
    with pytest.raises(ValueError, match="nothing to trace"):
        ztp.trace(model, images_for(model))
