"""The built-in model, some images, and their stories and scene."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from tests.show import SCHEDULE
from zerotprune.data import demo
from zerotprune.show.figure import as_image
from zerotprune.show.scene import Scene
from zerotprune.show.story import Story, tell


@pytest.fixture(scope="session")
def model() -> nn.Module:
    return demo.model()


@pytest.fixture(scope="session")
def images() -> Tensor:
    return demo.images(6, seed=7)[0]


@pytest.fixture(scope="session")
def stories(model: nn.Module, images: Tensor) -> list[Story]:
    return tell(model, images, SCHEDULE, heads=True)


@pytest.fixture
def scene(model: nn.Module, images: Tensor, stories: list[Story]) -> Scene:
    shown = [as_image(image, model) for image in images]
    return Scene("a title", "about it", shown, stories, [f"no. {at}" for at in range(6)], True)
