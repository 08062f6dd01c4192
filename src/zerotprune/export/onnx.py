"""Export to ONNX and run it in ONNX Runtime; int8 uses its static quantizer.

Four choices keep int8 files fast, and close to float on every CPU:

- Only inputs and weights of layers are quantized, not their outputs. By default the quantizer also
  rounds outputs, which cost ViT-Ti most of what it lost.
- A layer stays in float if 8 bits are too coarse for its input. In ViT-Ti the hidden values of one
  MLP reach 216 where a typical token has a size of 0.3: one step of 8 bits is larger than most
  values, and this layer alone caused nearly all of the remaining loss.
- Weights have 7 bits, unless asked otherwise. Without VNNI a CPU adds two products of an unsigned
  and a signed byte in 16 bits; 2 × 255 × 64 fits there, 2 × 255 × 127 does not. Unsigned weights of
  8 bits would fit as well, but their kernels take 1.5 times as long.
- A bias gets as many dimensions as the product. Otherwise ONNX Runtime fuses the two into one node,
  has no int8 kernel with a float output for it, and computes it in float.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..safety.files import parse_json
from .target import (
    Facts,
    Run,
    Target,
    batches_of,
    check_facts,
    no_facts,
    nothing_to_quantize,
    quiet,
)

#: has Gelu, and ScatterElements that add
OPSET = 20
#: A layer stays in float if 8 bits round its input by more than this share of a typical token. Most
#: have 0.01 to 0.03, some up to 0.07, one of ViT-Ti 0.86. With 0.05 int8 would be a fifth faster,
#: and change 5.6 % of the answers of ViT-Ti pruned by Fold instead of 3.4 %.
COARSEST = 0.03
_PREFIX = "zerotprune."
_LARGEST = 2**31 - 1  # bytes of a protobuf


class Onnx(Target):
    """ONNX Runtime on a CPU. Facts are metadata of the file."""

    name, runtime, ending = "onnx", "ONNX Runtime", ".onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    quantizer = ()

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        with quiet():
            made: Any = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=["images"],
                output_names=["output"],
                verbose=False,
            )
            for node in made.model.graph:  # where each node was traced, with paths of this machine
                node.metadata_props.clear()
            made.model.metadata_props.update(_metadata(facts | {"opset": OPSET}))
            made.save(path)

    def load(self, path: Path, threads: int | None) -> Run:
        session = _session(str(path), threads)

        def run(images: Tensor) -> Tensor:
            return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

        return run

    def quantize(
        self, source: Path, path: Path, images: Tensor, facts: Facts, full_range: bool = False
    ) -> None:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization import QuantType

        model = onnx.load(source)
        size = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1
        batches = batches_of(images, size)
        layers = _layers(model)
        # For the quantizer, and for the runtime's outputs, a list of none stands for all.
        if not layers:
            raise nothing_to_quantize(self, 0)
        coarseness, ranks = _look_at_inputs(model, layers, batches)
        fine = [node.name for node in layers if coarseness[node.input[0]] <= COARSEST]
        if not fine:
            raise nothing_to_quantize(self, len(layers))
        _widen_biases(model, layers, ranks)
        inputs = iter(batches)

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> dict[str, Any] | None:
                batch = next(inputs, None)
                return None if batch is None else {"images": batch.numpy()}

        with quiet():
            quantization.quantize_static(
                model,
                path,
                Reader(),
                op_types_to_quantize=["Gemm", "MatMul"],
                nodes_to_quantize=fine,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                reduce_range=not full_range,
                extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
            )
        small = onnx.load(path)
        onnx.helper.set_model_props(small, _metadata(facts | {"opset": OPSET}))
        onnx.save(small, path)

    def files(self, path: Path) -> list[Path]:
        """List the files; weights of more than 2 GB are in the first."""
        return [path.with_name(f"{path.name}.data"), path]

    def read(self, path: Path) -> Facts:
        self.check()
        import onnx
        from google.protobuf.message import DecodeError

        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path} is not an ONNX file: it is larger than 2 GB")
        try:
            model = onnx.load(path, load_external_data=False)
            metadata = {entry.key: entry.value for entry in model.metadata_props}
        except (DecodeError, UnicodeDecodeError):
            raise ValueError(f"{path} is not an ONNX file") from None
        texts = {key.removeprefix(_PREFIX): text for key, text in metadata.items()
                 if key.startswith(_PREFIX)}  # fmt: skip
        if not texts:
            raise no_facts(path)
        try:
            facts = {name: parse_json(text) for name, text in texts.items()}
        except ValueError as error:
            raise ValueError(f"{path} does not describe a model: {error}") from None
        return check_facts(path, facts)


def _metadata(facts: Facts) -> dict[str, str]:
    return {f"{_PREFIX}{name}": json.dumps(value) for name, value in facts.items()}


def _session(model: str | bytes, threads: int | None = None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: it warns of every constant that it does not fold
    if threads is not None:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _layers(model: Any) -> list[Any]:
    """List the products with weights. Those without belong to attention, or to the choice of
    tokens, and are better left in float."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [
        node
        for node in model.graph.node
        if node.op_type in ("Gemm", "MatMul") and node.input[1] in weights
    ]


def _look_at_inputs(
    model: Any, layers: list[Any], batches: list[Tensor]
) -> tuple[dict[str, float], dict[str, int]]:
    """Measure how coarse 8 bits are for the input of each layer, and count its dimensions.

    Coarseness is the typical error of rounding to 255 steps between the least and the largest
    value, divided by the size (root mean square) of the token in the middle.
    """
    names = list(dict.fromkeys(node.input[0] for node in layers))
    low, high = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    sizes: dict[str, list[np.ndarray]] = {name: [] for name in names}
    ranks = {}
    for name, values in _values(model, names, batches):
        low[name] = min(low[name], float(values.min()))
        high[name] = max(high[name], float(values.max()))
        sizes[name].append(np.sqrt(np.square(values).mean(axis=-1)).ravel())
        ranks[name] = values.ndim
    coarseness = {}
    for name in names:
        error = (high[name] - low[name]) / 255 / np.sqrt(12)
        coarseness[name] = error / max(float(np.median(np.concatenate(sizes[name]))), 1e-12)
    return coarseness, ranks


def _values(
    model: Any, names: list[str], batches: list[Tensor]
) -> Iterator[tuple[str, np.ndarray]]:
    """Run the model and yield the values of these names, batch by batch."""
    import onnx

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    watched.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in outputs
    )
    session = _session(watched.SerializeToString())
    for batch in batches:
        yield from zip(names, session.run(names, {"images": batch.numpy()}), strict=True)


def _widen_biases(model: Any, layers: list[Any], ranks: dict[str, int]) -> None:
    """Give biases that are added to products the products' number of dimensions."""
    import onnx

    vectors = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 1}
    ranks_of_products = {node.output[0]: ranks[node.input[0]] for node in layers}
    wide: dict[str, Any] = {}
    for node in model.graph.node:
        products = [name for name in node.input if name in ranks_of_products]
        biases = [name for name in node.input if name in vectors]
        if node.op_type != "Add" or not products or not biases:
            continue
        rank, bias = ranks_of_products[products[0]], biases[0]
        tensor = wide.setdefault(f"{bias}_{rank}d", onnx.TensorProto())
        tensor.CopyFrom(vectors[bias])
        tensor.name = f"{bias}_{rank}d"
        tensor.dims[:] = [1] * (rank - 1) + list(vectors[bias].dims)
        node.input[:] = [tensor.name if name == bias else name for name in node.input]
    used = {name for node in model.graph.node for name in node.input}  # other nodes may share one
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *wide.values()])
