"""Groups of merged patches: against a union by hand, and where their outlines run."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import zerotprune as ztp
from zerotprune.data import demo
from zerotprune.show.groups import DROPPED, GONE, blend_colours, find_borders, find_shared
from zerotprune.show.overlay import overlay
from zerotprune.show.palette import OUTLINE, TINT, Mark
from zerotprune.show.pixels import as_image
from zerotprune.show.raster import paint
from zerotprune.show.story import Story, tell
from zerotprune.tracing import Fate, trace


def union(model: nn.Module, images: Tensor, at: int) -> list[dict[int, set[int]]]:
    """After each stage the members of every token, gathered set by set from the trace."""
    members, after = {patch: {patch} for patch in range(196)}, []
    for stage in trace(model, images):
        for patch, fate in enumerate(stage.fate[at].tolist()):
            if fate == Fate.SIMILAR:
                members[int(stage.partner[at, patch])] |= members.pop(patch)
            elif fate == Fate.UNIMPORTANT:
                del members[patch]
        after.append({token: set(held) for token, held in members.items()})
    return after


@pytest.mark.parametrize("name", ["tome", "fold", "diffrate-even"])
def test_groups_are_the_unions_of_what_was_merged(
    name: str, model: nn.Module, images: Tensor
) -> None:
    schedule = ztp.schedule_for(model, cost=0.7, method=name)
    stories = tell(model, images, schedule)
    pruned = ztp.prune_(demo.model(), schedule)
    for at, story in enumerate(stories):
        gone: set[int] = set()
        for view, wanted in zip(story.stages, union(pruned, images, at), strict=True):
            assert view.token is not None
            held = view.token.flatten().tolist()
            assert {
                token: {patch for patch, each in enumerate(held) if each == token}
                for token in set(held) - {DROPPED, GONE}
            } == wanted
            assert view.kept == len(wanted)
            assert {patch for patch, each in enumerate(held) if each == GONE} == gone
            gone = set(range(196)) - set().union(*wanted.values())
            check_marks(view.marked, wanted)
        end = story.outcome()
        assert end.token is not None
        assert {patch for patch, each in enumerate(end.token.flatten()) if each == DROPPED} == gone
    assert bool(gone) == (name == "diffrate-even")


def check_marks(marked: object, groups: dict[int, set[int]]) -> None:
    """Every patch has one mark, merged ones the right one."""
    assert callable(marked)
    masks = {mark: marked(mark).flatten() for mark in Mark}
    assert (sum(mask.int() for mask in masks.values()) == 1).all()
    merged = set().union(*(held for held in groups.values() if len(held) > 1))
    assert set(masks[Mark.MERGED].nonzero().flatten().tolist()) == merged
    assert not masks[Mark.SIMILAR].any()


def test_outlines_run_where_neighbours_belong_to_different_groups() -> None:
    token = torch.tensor([[0, 0, 2], [5, 0, 5], [GONE, DROPPED, 8]])
    assert find_shared(token).tolist() == [[True, True, False], [True, True, True], [False] * 3]
    beside, above = find_borders(token)
    for row in range(3):
        for col in range(3):
            for mask, (down, right) in ((beside, (0, 1)), (above, (1, 0))):
                if row + down < 3 and col + right < 3:
                    here, there = int(token[row, col]), int(token[row + down, col + right])
                    shared = any(
                        int((token == each).sum()) > 1 for each in (here, there) if each >= 0
                    )
                    assert bool(mask[row, col]) == (here != there and shared), (row, col)


def test_a_group_has_the_mean_colour_of_its_patches() -> None:
    colours, token = torch.rand(2, 3, 3), torch.tensor([[0, 0, 2], [DROPPED, 0, GONE]])
    blended = blend_colours(colours, token)
    wanted = colours.clone()
    wanted[token == 0] = (colours[0, 0] + colours[0, 1] + colours[1, 1]) / 3
    torch.testing.assert_close(blended, wanted)


@pytest.fixture(scope="module")
def merged(model: nn.Module, images: Tensor) -> Story:
    return tell(model, images[:1], ztp.schedule_for(model, cost=0.6, method="tome"))[0]


def test_svg_draws_every_group_once_and_its_outline(merged: Story) -> None:
    view = merged.stages[-1]
    assert view.token is not None
    drawn = overlay(view, lines=False)
    paths = re.findall(r'class="merged" d="([^"]*)"', drawn)
    covered = torch.zeros(14, 14, dtype=torch.int)
    for path in paths:
        held = set()
        for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path):
            place = np.s_[int(y), int(x) : int(x) + int(wide)]
            covered[place] += 1
            held |= set(view.token[place].tolist())
        assert len(held) == 1
    assert torch.equal(covered.bool(), view.marked(Mark.MERGED))
    assert covered.max() == 1
    lines = re.findall(r'd="([^"]*)" stroke="#', drawn.split('class="outline"')[1])
    beside, above = find_borders(view.token)
    assert len(lines) == len(OUTLINE)
    for line in lines:
        assert (line.count("v1"), line.count("h1")) == (beside.sum(), above.sum())
    assert not any(f'class="{mark}"' in drawn for mark in ("similar", "gone", "unimportant"))


def test_pixels_of_a_group_share_its_tint_and_single_patches_stay(
    merged: Story, images: Tensor, model: nn.Module
) -> None:
    view, image = merged.stages[-1], as_image(images[0], model)
    assert view.tint is not None
    large = image.resize((3 * 280, 3 * 280), Image.Resampling.BICUBIC).reduce(3)
    plain = np.asarray(large, dtype=float)
    painted = np.asarray(paint(image, view, (280, 280)), dtype=float)
    shared = view.marked(Mark.MERGED)
    assert 0 < shared.sum() < 196
    for row in range(14):
        for col in range(14):
            inner = np.s_[20 * row + 3 : 20 * row + 17, 20 * col + 3 : 20 * col + 17]
            strength = TINT * bool(shared[row, col])
            tint = 255 * view.tint[row, col].double().numpy()
            wanted = (1 - strength) * plain[inner] + strength * tint
            np.testing.assert_allclose(painted[inner], wanted, atol=2)
