"""A pruned model of each library in ONNX Runtime answers as it does in torch."""

from __future__ import annotations

from pathlib import Path

from tests.export.matrix import LIBRARIES, results_of


def test_a_model_of_each_library(tmp_path: Path) -> None:
    agreements = results_of("libraries", tmp_path)
    assert agreements.keys() == {*LIBRARIES, "transformers"}
    for same, typical in agreements.values():
        assert same == 1
        assert 0 < typical < 1e-5
