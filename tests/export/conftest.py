"""What the tests of exported files share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for the files that all tests of a module look at."""
    return tmp_path_factory.mktemp("exported")
