"""The examples in docstrings run, and every public name has one."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import zerotprune

SOURCE = Path(zerotprune.__file__).parent


def _modules() -> list[str]:
    """Return every module with an example."""
    files = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    parts = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in files]
    return [".".join(part for part in path if part != "__init__") for path in parts]


@pytest.mark.parametrize("module", _modules())
def test_examples_run(module: str) -> None:
    results = doctest.testmod(import_module(module))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", sorted(set(zerotprune.__all__) - {"methods"}))
def test_public_names_have_an_example(name: str) -> None:
    assert ">>> " in (getattr(zerotprune, name).__doc__ or "")
