"""int8: a file that is right on every CPU, nodes that stay in float, and a loss that is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import zerotprune as ztp
from tests.export.matrix import converting_once, images_of, tiny
from tests.nursery import run_script
from zerotprune.export import exporting, target_named
from zerotprune.export.onnx import _layers as layers_of
from zerotprune.export.onnx import _look_at_inputs, _widen_biases
from zerotprune.export.results import Agreement


def pair_sums(weights: np.ndarray) -> tuple[int, int]:
    """Return the least and the largest sum of two products that a CPU without VNNI adds in 16 bits.

    `vpmaddubsw` takes unsigned bytes, any of them, and two neighboring weights of a column.
    """
    signed = weights.astype(np.int64)
    if len(signed) % 2:
        signed = np.concatenate([signed, np.zeros_like(signed[:1])])
    pairs = 255 * np.stack([signed[::2], signed[1::2]])
    return int(np.minimum(pairs, 0).sum(axis=0).min()), int(np.maximum(pairs, 0).sum(axis=0).max())


def fits(weights: np.ndarray) -> bool:
    low, high = pair_sums(weights)
    return low >= -(2**15) and high < 2**15


def written() -> None:
    """Write both kinds of files in a separate process: type checks would break the graph."""
    folder, model, images = Path(sys.argv[1]), tiny(2), images_of(6)
    options: dict[str, Any] = {"images": images, "int8": True, "max_changed": 1, "rounds": 0}
    with converting_once():
        for to, end in (("onnx", "onnx"), ("openvino", "xml")):
            for full_range in (False, True):
                path = folder / f"{'full' if full_range else 'safe'}.{end}"
                ztp.export_model(model, path, to=to, full_range=full_range, **options)


@pytest.fixture(scope="module")
def files(folder: Path) -> Path:
    run_script("from tests.export.test_int8 import written; written()", str(folder))
    return folder


def onnx_weights(path: Path) -> list[np.ndarray]:
    """Return the quantized weights of products, channels in columns."""
    model = onnx.load(path)
    initial = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {node.output[0]: node for node in model.graph.node}
    weights = []
    for node in model.graph.node:
        source = made_by.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if (
            source is not None
            and source.op_type == "DequantizeLinear"
            and source.input[0] in initial
        ):
            array = numpy_helper.to_array(initial[source.input[0]])
            turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
            weights.append(array.T if turned else array)
    return weights


def openvino_weights(path: Path) -> list[np.ndarray]:
    model = openvino.Core().read_model(path)
    return [
        node.get_data().reshape(len(node.get_data()), -1).T
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_element_type() == openvino.Type.i8
        and node.get_data().ndim > 1
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "weights"),
    [("onnx", onnx_weights), ("xml", openvino_weights)],
    ids=["onnx", "openvino"],
)
def test_no_sum_of_two_products_passes_16_bits(end: str, weights: Any, files: Path) -> None:
    """By arithmetic, for any image: the kernels of no CPU can saturate."""
    safe, full = (weights(files / f"{name}.{end}") for name in ("safe", "full"))
    assert len(safe) == len(full) >= 8
    assert all(array.dtype == np.int8 for array in (*safe, *full))
    assert all(fits(array) for array in safe)
    assert not any(fits(array) for array in full)


def test_the_oracle_of_saturation() -> None:
    assert pair_sums(np.array([[64], [64], [-64]])) == (-64 * 255, 2 * 64 * 255)
    assert fits(np.full((4, 2), 64))
    assert not fits(np.full((4, 2), 65))
    assert fits(np.array([[127], [-127]]))  # they cancel


def test_a_file_says_which_it_is(files: Path) -> None:
    for name, end in (("onnx", "onnx"), ("openvino", "xml")):
        safe, full = (target_named(name).read(files / f"{kind}.{end}") for kind in ("safe", "full"))
        assert safe["precision"] == full["precision"] == "int8"
        assert safe["int8_weights"] == "7 bits, for every CPU"
        assert full["int8_weights"] == "8 bits, for CPUs with VNNI only"


def test_int8_that_changes_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "write_model", lambda job, model, path: {"int8": path})
    monkeypatch.setattr(exporting, "compare_with_torch", lambda *args: Agreement(50, 9.0, 0.5, 0.8))
    model = tiny(2)
    with pytest.raises(ValueError, match=r"int8.*20\.0%.* 50 images.*15"):
        ztp.export_model(model, tmp_path / "m.onnx", images=images_of(2), int8=True, rounds=0)
    assert list(tmp_path.iterdir()) == []


def product(rank: int = 3) -> Any:
    """Make y = x @ w + b as ONNX, with weights of 4 × 2."""
    helper = onnx.helper
    shape = [1, 3, 4][3 - rank :]
    nodes = [helper.make_node("MatMul", ["images", "w"], ["p"], "product")]
    nodes.append(helper.make_node("Add", ["p", "b"], ["output"], "add"))
    initial = {"w": np.arange(8, dtype=np.float32).reshape(4, 2), "b": np.ones(2, np.float32)}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, [*shape[:-1], 2])],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_an_outlier_makes_8_bits_coarse() -> None:
    model = product()
    even = torch.ones(1, 3, 4)
    odd = even.clone()
    odd[0, 0, 0] = 255.0
    layers = layers_of(model)
    assert [node.name for node in layers] == ["product"]
    for images, step in ((even, 1 / 255), (odd, 1.0)):
        coarseness, ranks = _look_at_inputs(model, layers, [images])
        assert coarseness["images"] == pytest.approx(step / 12**0.5)
        assert ranks == {"images": 3}


@pytest.mark.parametrize("weights", [True, False])
def test_int8_of_no_layer_is_refused(weights: bool, tmp_path: Path) -> None:
    """All inputs are too coarse, or no product has weights: for the quantizer, none means all."""
    model, images = product(), torch.ones(1, 3, 4)
    if weights:
        images[0, 0, 0] = 255.0
    else:
        model.graph.node.insert(0, onnx.helper.make_node("Identity", ["w"], ["computed"]))
        model.graph.node[1].input[1] = "computed"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"int8.*float32"):
        target_named("onnx").quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", images, {})
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("rank", [2, 3])
def test_a_wide_bias_changes_no_output(rank: int) -> None:
    images = torch.randn([1, 3, 4][3 - rank :])
    model = product(rank=rank)
    wide = product(rank=rank)
    _widen_biases(wide, layers_of(wide), {"images": rank})
    (bias,) = (tensor for tensor in wide.graph.initializer if tensor.name == f"b_{rank}d")
    assert list(bias.dims) == [1] * (rank - 1) + [2]
    onnx.checker.check_model(wide, full_check=True)
    evaluator: Any = ReferenceEvaluator
    outputs = [evaluator(graph).run(None, {"images": images.numpy()})[0] for graph in (model, wide)]
    np.testing.assert_array_equal(*outputs)


def tell() -> None:
    """Print the operators that ONNX Runtime makes of a file, in a separate process."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = f"{sys.argv[1]}.optimized"
    options.log_severity_level = 3
    onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    print(json.dumps([node.op_type for node in onnx.load(f"{sys.argv[1]}.optimized").graph.node]))


def test_products_run_in_integers(files: Path) -> None:
    """ONNX Runtime computes what it does not recognize in float, slower than before."""
    script = "from tests.export.test_int8 import tell; tell()"
    kinds = json.loads(run_script(script, str(files / "safe.onnx"))[-1])
    assert kinds.count("MatMulIntegerToFloat") + kinds.count("QGemm") == len(
        onnx_weights(files / "safe.onnx")
    )
    assert "DequantizeLinear" not in kinds
