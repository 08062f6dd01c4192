"""Stories against the trace and the logits; whatever a method does, the model is left alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.show import SCHEDULE, hand_made
from zerotprune import Schedule, Stage
from zerotprune.data import demo
from zerotprune.methods import ToMe, names, resolve
from zerotprune.show.palette import Mark
from zerotprune.show.story import Story, name_marks, tell
from zerotprune.tracing import Fate


def test_a_story_is_the_trace_and_the_logits(
    model: nn.Module, images: Tensor, stories: list[Story]
) -> None:
    pruned = ztp.prune_(demo.model(), SCHEDULE)
    stages = ztp.trace(pruned, images)
    with torch.inference_mode():
        outputs = {"before": model(images), "after": pruned(images)}
    for at, story in enumerate(stories):
        assert story.grid == (14, 14)
        assert [view.kept for view in story.stages] == [187, 108, 54]
        for view, stage in zip(story.stages, stages, strict=True):
            assert view.block == stage.block
            assert torch.equal(view.fate.flatten(), stage.fate[at])
            assert torch.equal(view.partner.flatten(), stage.partner[at])
            assert torch.equal(view.importance.nan_to_num().flatten(),
                               stage.importance[at].nan_to_num())  # fmt: skip
        for name, logits in outputs.items():
            exact = np.exp(logits[at].double().numpy())
            exact /= exact.sum()
            best = np.argsort(-exact)[:5]
            said = getattr(story, name)
            assert [each.label for each in said] == [f"digit {number}" for number in best]
            assert [each.share for each in said] == pytest.approx(exact[best].tolist(), rel=1e-4)


@pytest.mark.parametrize("name", [name for name in names() if name != "diffrate"])
def test_every_method_has_a_story_and_leaves_the_model_alone(
    name: str, model: nn.Module, images: Tensor
) -> None:
    images = images[:2]
    some = images if resolve(name).adaptive else None
    schedule = ztp.schedule_for(model, cost=0.7, method=name, images=some)
    with torch.inference_mode():
        before = model(images)
        told = tell(model, images, schedule)
        assert torch.equal(model(images), before)
    assert not any("forward" in module.__dict__ for module in model.modules())
    for story in told:
        left = story.patches
        for view in story.stages:
            assert view.kept <= left
            assert left == story.patches - view.count(Fate.GONE)
            left = view.kept


def test_two_at_once_do_not_disturb_each_other(model: nn.Module, images: Tensor) -> None:
    images = images[:2]
    ways = [SCHEDULE, Schedule((Stage(3, 1.0, 20), Stage(4, 1.0, 30)), ToMe())]
    alone = [tell(model, images, way) for way in ways]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            together = list(pool.map(lambda way: tell(model, images, way), ways))
            for told, wanted in zip(together, alone, strict=True):
                for one, other in zip(told, wanted, strict=True):
                    assert (one.before, one.after) == (other.before, other.after)
                    for view, same in zip(one.stages, other.stages, strict=True):
                        assert torch.equal(view.fate, same.fate)


def test_no_stages_no_change(model: nn.Module, images: Tensor) -> None:
    (story,) = tell(model, images[:1], Schedule())
    assert story.stages == []
    assert story.before == story.after
    assert story.outcome().kept == 196


def test_a_pruned_model_stays_pruned(images: Tensor) -> None:
    pruned = ztp.prune_(demo.model(), SCHEDULE)
    with torch.inference_mode():
        before = pruned(images)
        (story, *_) = tell(pruned, images, Schedule((Stage(4, 0.5),)))
        assert torch.equal(pruned(images), before)
    assert len(story.stages) == 1
    assert story.before == tell(demo.model(), images, Schedule())[0].before


def test_a_model_without_a_head_predicts_nothing() -> None:
    model = timm.create_model("test_vit", num_classes=0).eval()
    (story,) = tell(model, torch.randn(1, 3, 160, 160), Schedule((Stage(2, 0.5),)))
    assert (story.before, story.after) == ([], [])
    assert story.stages[0].kept == 50


def test_the_outcome_tells_each_patch_why_it_went(stories: list[Story]) -> None:
    story = stories[0]
    end = story.outcome()
    assert end.kept == 54
    assert end.count(Fate.SIMILAR) == 16
    assert end.count(Fate.UNIMPORTANT) == 196 - 54 - 16
    for stage in story.stages:
        for fate in (Fate.SIMILAR, Fate.UNIMPORTANT):
            assert (end.fate[stage.fate == fate] == fate).all()
        assert (end.partner[stage.partner >= 0] == stage.partner[stage.partner >= 0]).all()


def test_moments_are_the_image_and_every_stage(stories: list[Story]) -> None:
    titles = [(moment.title, moment.kept) for moment in stories[0].moments()]
    assert titles == [
        ("image", 196), ("after block 2", 187), ("after block 5", 108), ("after block 9", 54),
    ]  # fmt: skip
    assert [moment.stage for moment in stories[0].moments()] == [None, *stories[0].stages]


def test_pairs_are_places_of_a_patch_and_its_partner() -> None:
    assert hand_made().pairs() == [((1, 0), (2, 1))]


def test_a_method_says_itself_whether_it_merges(
    stories: list[Story], model: nn.Module, images: Tensor
) -> None:
    merged = tell(model, images[:1], Schedule((Stage(3, 1.0, 20),), ToMe()))
    assert [story.merges for story in (*merged, stories[0])] == [True, False]
    assert list(name_marks(merged[0].stages)) == [Mark.KEPT, Mark.MERGED]
    dropped = [Mark.KEPT, Mark.SIMILAR, Mark.UNIMPORTANT, Mark.GONE]
    assert list(name_marks(stories[0].stages)) == dropped
    both = name_marks(stories[0].stages + merged[0].stages)
    assert list(both) == [Mark.KEPT, Mark.MERGED, *dropped[1:]]
    assert merged[0].count_left(176) == "176 of 196 tokens"
    assert stories[0].count_left(54) == "54 of 196 kept"
