"""Stories against the trace, the logits and a union by hand; scenes and what they cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.show import SCHEDULE, hand_made
from tests.thorough import thorough
from zerotprune import Schedule, Stage
from zerotprune.budgets.solving import measured_gmacs
from zerotprune.data import demo
from zerotprune.methods import ATS, ToMe, names, resolve
from zerotprune.show.scene import Scene, count_gmacs, make_scene, percent
from zerotprune.show.story import (
    DROPPED,
    GONE,
    MARKS,
    Mark,
    StageView,
    Story,
    blend_colors,
    find_borders,
    find_shared,
    name_marks,
    tell,
)
from zerotprune.tracing import Fate, trace


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
            answers = getattr(story, name)
            assert [answer.label for answer in answers] == [f"digit {number}" for number in best]
            assert [answer.share for answer in answers] == pytest.approx(
                exact[best].tolist(), rel=1e-4
            )


#: one of each way to merge, drop and halt
WAYS = ("fold", "zero-tprune", "evit", "diffrate-even", "ats", "a-vit")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in WAYS else thorough)
     for name in names() if name != "diffrate"],
)  # fmt: skip
def test_every_method_has_a_story_and_leaves_the_model_alone(
    name: str, model: nn.Module, images: Tensor
) -> None:
    images = images[:2]
    some = images if resolve(name).adaptive else None
    schedule = ztp.schedule_for(model, cost=0.7, method=name, images=some)
    with torch.inference_mode():
        before = model(images)
        stories = tell(model, images, schedule)
        assert torch.equal(model(images), before)
    assert not any("forward" in module.__dict__ for module in model.modules())
    for story in stories:
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
            for batched, wanted in zip(together, alone, strict=True):
                for one, other in zip(batched, wanted, strict=True):
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
    for limit, blocks in {2: [0, 9], 3: [0, 5, 9], 4: [0, 2, 5, 9], 9: [0, 2, 5, 9]}.items():
        stages = [moment.stage for moment in stories[0].moments(limit)]
        assert [stage.block if stage else 0 for stage in stages] == blocks


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
    assert "176 of 196 tokens" in merged[0].count_left(176)
    assert "54 of 196 kept" in stories[0].count_left(54)


def union(model: nn.Module, images: Tensor, index: int) -> list[dict[int, set[int]]]:
    """Collect the patches of every token after each stage, set by set, from the trace."""
    members, after = {patch: {patch} for patch in range(196)}, []
    for stage in trace(model, images):
        for patch, fate in enumerate(stage.fate[index].tolist()):
            if fate == Fate.SIMILAR:
                members[int(stage.partner[index, patch])] |= members.pop(patch)
            elif fate == Fate.UNIMPORTANT:
                del members[patch]
        after.append({token: set(patches) for token, patches in members.items()})
    return after


@pytest.mark.parametrize("name", ["tome", "fold", "diffrate-even"])
def test_tokens_are_the_unions_of_what_was_merged(
    name: str, model: nn.Module, images: Tensor
) -> None:
    schedule, images = ztp.schedule_for(model, cost=0.7, method=name), images[:2]
    stories = tell(model, images, schedule)
    pruned = ztp.prune_(demo.model(), schedule)
    for index, story in enumerate(stories):
        gone: set[int] = set()
        for view, expected in zip(story.stages, union(pruned, images, index), strict=True):
            assert view.token is not None
            groups = {
                token: set((view.token.flatten() == token).nonzero().flatten().tolist())
                for token in (*view.token.unique().tolist(), GONE)
            }
            assert groups.pop(GONE) == gone
            groups.pop(DROPPED, None)
            assert groups == expected
            assert view.kept == len(expected)
            gone = set(range(196)) - set().union(*expected.values())
            check_marks(view, expected)
        end = story.outcome().token
        assert end is not None
        assert set((end.flatten() == DROPPED).nonzero().flatten().tolist()) == gone
    assert bool(gone) == (name == "diffrate-even")


def check_marks(view: StageView, groups: dict[int, set[int]]) -> None:
    """Check that every patch has one mark, and merged ones the right one."""
    masks = {mark: view.marked(mark).flatten() for mark in Mark}
    assert (torch.stack(list(masks.values())).sum(dim=0) == 1).all()
    merged = set().union(*(patches for patches in groups.values() if len(patches) > 1))
    assert set(masks[Mark.MERGED].nonzero().flatten().tolist()) == merged
    assert not masks[Mark.SIMILAR].any()


def test_borders_run_between_different_tokens() -> None:
    token = torch.tensor([[0, 0, 2], [5, 0, 5], [GONE, DROPPED, 8]])
    assert find_shared(token).tolist() == [[True, True, False], [True, True, True], [False] * 3]
    in_row, in_column = find_borders(token)
    for row in range(3):
        for col in range(3):
            for mask, (down, right) in ((in_row, (0, 1)), (in_column, (1, 0))):
                if row + down < 3 and col + right < 3:
                    here, there = int(token[row, col]), int(token[row + down, col + right])
                    shared = any(
                        int((token == name).sum()) > 1 for name in (here, there) if name >= 0
                    )
                    assert bool(mask[row, col]) == (here != there and shared), (row, col)


def test_a_token_has_the_mean_color_of_its_patches() -> None:
    colors, token = torch.rand(2, 3, 3), torch.tensor([[0, 0, 2], [DROPPED, 0, GONE]])
    blended = blend_colors(colors, token)
    expected = colors.clone()
    expected[token == 0] = (colors[0, 0] + colors[0, 1] + colors[1, 1]) / 3
    torch.testing.assert_close(blended, expected)


def test_a_legend_names_what_occurs_and_nothing_else(
    model: nn.Module, images: Tensor, scene: Scene
) -> None:
    assert list(scene.legend()) == [Mark.SIMILAR, Mark.UNIMPORTANT, Mark.GONE]
    assert list(scene.legend(outcome=True)) == [Mark.SIMILAR, Mark.UNIMPORTANT]
    (merged,) = tell(model, images[:1], Schedule((Stage(3, 1.0, 20),), ToMe()))
    single = Scene("", "", scene.images[:1], [merged], [""])
    assert single.legend() == {Mark.MERGED: MARKS[Mark.MERGED]}


def test_percent_has_a_digit_more_near_0_and_100() -> None:
    shares = {0.004: "0.4 %", 0.5: "50 %", 0.996: "99.6 %", 0.9996: "100 %", 1.0: "100 %"}
    assert {share: percent(share) for share in shares} == shares


def test_a_scene_says_what_was_spent(
    model: nn.Module, images: Tensor, stories: list[Story]
) -> None:
    made = make_scene("a title", model, SCHEDULE, images, [""] * 6, heads=True)
    full, cost = ztp.gmacs(model), ztp.gmacs(model, SCHEDULE)
    for number in (f"{full:.3f}", f"{cost:.3f} GMACs", f"{100 * cost / full:.0f} %"):
        assert number in made.about
    assert [story.after for story in made.stories] == [story.after for story in stories]
    expected = ((images[2] + 1) * 127.5).round().permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(np.asarray(made.images[2]), expected)


def test_what_depends_on_the_image_is_measured(model: nn.Module, images: Tensor) -> None:
    schedule = Schedule((Stage(4, 0.5), Stage(7, 0.5)), ATS(60))
    for some in (images[:1], images):
        spent = count_gmacs(model, schedule, some)
        assert spent == pytest.approx(measured_gmacs(demo.model(), schedule, some))
        assert spent < ztp.gmacs(model)
