"""The built-in model in the catalog, and an example image."""

from __future__ import annotations

import pytest
from PIL import Image

from zerotprune.app.catalog import CatalogEntry, generate_examples
from zerotprune.data import demo


@pytest.fixture(scope="session")
def entry() -> CatalogEntry:
    return CatalogEntry("demo", demo.model())


@pytest.fixture(scope="session")
def examples() -> list[tuple[str, Image.Image]]:
    return generate_examples()


@pytest.fixture(scope="session")
def image(examples: list[tuple[str, Image.Image]]) -> Image.Image:
    return examples[0][1]
