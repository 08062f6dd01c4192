"""A pruned model of each library in ONNX Runtime answers as it does in torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.matrix import LIBRARIES, results_of
from tests.thorough import thorough

FIRST, *OTHERS = LIBRARIES


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=thorough) for name in OTHERS)])
def test_a_model_of_each_library(name: str, tmp_path: Path) -> None:
    agreement = results_of("library", tmp_path, name)
    assert agreement["same"] == 1
    assert 0 < agreement["typical"] < 1e-5
