"""Every static method in every runtime answers as it does in torch; equal values are no matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.export.matrix import LIBRARIES, METHODS, SMALL
from tests.nursery import said_by
from zerotprune.export import target_named

SCRIPT = "from tests.export import matrix; matrix.tell()"
WRITTEN = ("onnx", "openvino", "torch")


def run(what: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said_by(SCRIPT, what, str(folder))[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return run("written", folder)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_in_a_runtime(method: str, name: str, found: dict[str, Any]) -> None:
    assert found[f"{method}, {name}"] < 2e-5


@pytest.mark.parametrize("name", WRITTEN)
def test_batches_of_any_size(name: str, found: dict[str, Any]) -> None:
    assert found[f"dynamic, {name}"] < 2e-5


@pytest.mark.parametrize("name", WRITTEN)
def test_of_equals_the_first(name: str, found: dict[str, Any]) -> None:
    assert found[f"ordered, {name}"] == 0


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_int8_is_smaller_and_near(name: str, found: dict[str, Any]) -> None:
    apart, size, small = found[f"int8, {name}"]
    assert 1e-5 < apart < 0.5
    assert small < 0.8 * size


@pytest.mark.parametrize(("name", "ending"), [("onnx", ".onnx"), ("openvino", ".xml")])
def test_a_file_says_what_it_is(
    name: str, ending: str, found: dict[str, Any], folder: Path
) -> None:
    told = target_named(name).read(folder / f"{SMALL}{ending}")
    assert told["method"] == {"name": SMALL, "options": {}}
    assert [stage["similar"] for stage in told["schedule"]["stages"]] == [4]
    assert told["input"] == {"batch": 2, "shape": [3, 64, 64]}
    assert told["preprocessing"]["size"] == [64, 64]
    assert told["preprocessing"]["interpolation"] == "bicubic"
    assert told["opset"] == 20
    assert {"zerotprune", "torch", "onnx"} <= told["versions"].keys()
    assert target_named("onnx").read(folder / "int8" / f"{SMALL}.onnx")["method"] == told["method"]


def test_a_model_of_each_library(tmp_path: Path) -> None:
    found = run("libraries", tmp_path)
    assert found.keys() == {*LIBRARIES, "transformers"}
    for same, typical in found.values():
        assert same == 1
        assert 0 < typical < 1e-5


@pytest.fixture(scope="module")
def lowered(folder: Path) -> dict[str, Any]:
    return run("lowered", folder)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_in_executorch(method: str, lowered: dict[str, Any]) -> None:
    assert lowered[f"{method}, executorch"] < 2e-5


def test_executorch_of_equals_the_first(lowered: dict[str, Any]) -> None:
    assert lowered["ordered, executorch"] == 0


def test_executorch_says_where_it_is_cut(lowered: dict[str, Any], folder: Path) -> None:
    told = target_named("executorch").read(folder / "fold.pte")
    assert told["xnnpack_parts"] > 1
    assert "gather" in told["portable"]
