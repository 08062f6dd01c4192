"""Scenes: what stands in title and legend, what was spent."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor, nn

import zerotprune as ztp
from tests.show import SCHEDULE
from zerotprune import Schedule, Stage
from zerotprune.budgets.adaptive import measured_gmacs
from zerotprune.data import demo
from zerotprune.methods import ATS, ToMe
from zerotprune.show.palette import Mark
from zerotprune.show.scene import Scene, count_gmacs, make_scene, percent
from zerotprune.show.story import Story, tell


def test_a_legend_names_what_occurs_and_nothing_else(
    model: nn.Module, images: Tensor, scene: Scene
) -> None:
    assert list(scene.legend()) == [Mark.SIMILAR, Mark.UNIMPORTANT, Mark.GONE]
    assert list(scene.legend(outcome=True)) == [Mark.SIMILAR, Mark.UNIMPORTANT]
    (merged,) = tell(model, images[:1], Schedule((Stage(3, 1.0, 20),), ToMe()))
    single = Scene("", "", scene.images[:1], [merged], [""])
    assert single.legend() == {
        Mark.MERGED: "merged: the patches of one token share colour and outline"
    }


def test_percent_is_exact_where_it_matters() -> None:
    shares = {0.004: "0.4 %", 0.5: "50 %", 0.996: "99.6 %", 0.9996: "100 %", 1.0: "100 %"}
    assert {share: percent(share) for share in shares} == shares


def test_a_scene_says_what_was_spent(
    model: nn.Module, images: Tensor, stories: list[Story]
) -> None:
    made = make_scene("a title", model, SCHEDULE, images, [""] * 6, heads=True)
    full, cost = ztp.gmacs(model), ztp.gmacs(model, SCHEDULE)
    share = f"{100 * cost / full:.0f} %"
    assert made.about == f"{full:.3f} → {cost:.3f} GMACs ({share}), nothing trained"
    assert [story.after for story in made.stories] == [story.after for story in stories]
    wanted = ((images[2] + 1) * 127.5).round().permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(np.asarray(made.images[2]), wanted)


def test_what_depends_on_the_image_is_measured(model: nn.Module, images: Tensor) -> None:
    schedule = Schedule((Stage(4, 0.5), Stage(7, 0.5)), ATS(60))
    for some in (images[:1], images):
        spent = count_gmacs(model, schedule, some)
        assert spent == pytest.approx(measured_gmacs(demo.model(), schedule, some))
        assert spent < ztp.gmacs(model)
