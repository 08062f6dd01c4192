"""Methods in ExecuTorch answer as they do in torch; equal values are no matter.

`make test` takes Fold, `make test-thorough` and `make exports` every static one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.matrix import LOWERED, METHODS, results_of
from tests.thorough import thorough
from zerotprune.export import target_named


@pytest.fixture(scope="module")
def lowered(folder: Path) -> dict[str, Any]:
    return results_of("lowered", folder)


@pytest.mark.parametrize(
    "method",
    [method if method in LOWERED else pytest.param(method, marks=thorough) for method in METHODS],
)
def test_a_method_in_executorch(method: str, lowered: dict[str, Any]) -> None:
    assert lowered[f"{method}, executorch"] < 2e-5


def test_executorch_of_equals_the_first(lowered: dict[str, Any]) -> None:
    assert lowered["ordered, executorch"] == 0


def test_executorch_says_where_it_is_cut(lowered: dict[str, Any], folder: Path) -> None:
    facts = target_named("executorch").read(folder / "fold.pte")
    assert facts["xnnpack_parts"] > 1
    assert "gather" in facts["portable"]
    assert all(name.isidentifier() for name in facts["portable"])  # what is computed, and no memory


def test_executorch_runs_with_these_threads(lowered: dict[str, Any], folder: Path) -> None:
    executorch = target_named("executorch")
    executorch.load(folder / "fold.pte", None)
    from executorch.extension.pybindings.portable_lib import _threadpool_get_thread_count as count

    own = count()
    for threads in (own + 1, 1, None):
        executorch.load(folder / "fold.pte", threads)
        assert count() == (threads or own)
