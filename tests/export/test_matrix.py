"""Every static method in every runtime answers as it does in torch; equal values are no matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.matrix import METHODS, SMALL, WRITTEN, results_of
from tests.thorough import thorough
from zerotprune.export import ENDINGS, target_named

RUNTIMES = ("onnx", "openvino", "torch")
CASES = [
    method if method in WRITTEN else pytest.param(method, marks=thorough) for method in METHODS
]


@pytest.fixture(scope="module")
def differences(folder: Path) -> dict[str, Any]:
    return results_of("written", folder)


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("method", CASES)
def test_a_method_in_a_runtime(method: str, name: str, differences: dict[str, Any]) -> None:
    assert differences[f"{method}, {name}"] < 2e-5


def test_the_page_ticks_what_these_tests_hold() -> None:
    """A method that is exported neither here nor by `make exports` for ExecuTorch has no tick."""
    page = Path(__file__).parents[2] / "docs" / "deploy.md"
    rows = [[cell.strip() for cell in line.strip("| ").split("|")]
            for line in page.read_text("utf-8").splitlines() if "✓" in line]  # fmt: skip
    ticked = {name: ticks for name, *ticks in rows if name not in ("any batch size", "int8")}
    assert ticked == {method: ["✓"] * len(ENDINGS) for method in METHODS}


@pytest.mark.parametrize("name", RUNTIMES)
def test_batches_of_any_size(name: str, differences: dict[str, Any]) -> None:
    assert differences[f"dynamic, {name}"] < 2e-5


@pytest.mark.parametrize("name", RUNTIMES)
def test_of_equals_the_first(name: str, differences: dict[str, Any]) -> None:
    assert differences[f"ordered, {name}"] == 0


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_int8_is_smaller_and_near(name: str, differences: dict[str, Any]) -> None:
    apart, size, small = differences[f"int8, {name}"]
    assert 1e-5 < apart < 0.5
    assert small < 0.8 * size


@pytest.mark.parametrize(("name", "ending"), [("onnx", ".onnx"), ("openvino", ".xml")])
def test_a_file_says_what_it_is(
    name: str, ending: str, differences: dict[str, Any], folder: Path
) -> None:
    facts = target_named(name).read(folder / f"{SMALL}{ending}")
    assert facts["method"] == {"name": SMALL, "options": {}}
    assert [stage["similar"] for stage in facts["schedule"]["stages"]] == [4]
    assert facts["input"] == {"batch": 2, "shape": [3, 64, 64]}
    assert facts["preprocessing"]["size"] == [64, 64]
    assert facts["preprocessing"]["interpolation"] == "bicubic"
    assert facts["opset"] == 20
    assert {"zerotprune", "torch", "onnx"} <= facts["versions"].keys()
    assert target_named("onnx").read(folder / "int8" / f"{SMALL}.onnx")["method"] == facts["method"]
