"""Export to OpenVINO through ONNX; int8 uses nncf.

OpenVINO's own front end for torch cannot read a pruned model; from ONNX the results are correct.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..safety.files import text_of
from .onnx import OPSET, Onnx
from .target import (
    Facts,
    Run,
    Target,
    batches_of,
    no_facts,
    nothing_to_quantize,
    parse_facts,
    quiet,
)


class OpenVino(Target):
    """OpenVINO on a CPU. Facts are run-time information of the .xml; weights are in the .bin."""

    name, runtime, ending = "openvino", "OpenVINO", ".xml"
    packages = ("onnx", "onnxscript", "openvino")
    quantizer = ("nncf",)

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        import openvino

        between = path.with_name("between.onnx")
        Onnx().write(program, between, facts)
        with quiet():
            _save(openvino.convert_model(between), path, facts)
        for file in Onnx().written(between):
            file.unlink()

    def load(self, path: Path, threads: int | None) -> Run:
        import openvino

        # Without the hint it takes bfloat16 on CPUs that have it.
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            config["INFERENCE_NUM_THREADS"] = threads
        with quiet():
            compiled = openvino.compile_model(path, "CPU", config)

        def run(images: Tensor) -> Tensor:
            return torch.from_numpy(compiled(images.numpy())[0].copy())

        return run

    def quantize(
        self, source: Path, path: Path, images: Tensor, facts: Facts, full_range: bool = False
    ) -> None:
        import openvino

        with quiet():
            import nncf
            from nncf.quantization.advanced_parameters import (
                AdvancedQuantizationParameters,
                OverflowFix,
            )

            model = openvino.Core().read_model(source)
            size = model.input().partial_shape[0]
            batches = batches_of(images, size.get_length() if size.is_static else 1)
            overflow = OverflowFix.DISABLE if full_range else OverflowFix.ENABLE
            small = nncf.quantize(
                model,
                nncf.Dataset([batch.numpy() for batch in batches]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(batches),
                ignored_scope=nncf.IgnoredScope(names=_left_in_float(model), validate=False),
                advanced_parameters=AdvancedQuantizationParameters(overflow_fix=overflow),
            )
            if not any(node.get_type_name() == "FakeQuantize" for node in small.get_ops()):
                raise nothing_to_quantize(self, 0)
            _save(small, path, facts)

    def files(self, path: Path) -> list[Path]:
        return [path.with_suffix(".bin"), path]

    def read(self, path: Path) -> Facts:
        try:
            root = ElementTree.fromstring(text_of(path, "OpenVINO model"))
        except (ElementTree.ParseError, ValueError):
            raise ValueError(f"{path} is not an OpenVINO model") from None
        entry = root.find("./rt_info/zerotprune")
        if entry is None:
            raise no_facts(path)
        return parse_facts(path, entry.get("value", ""))


def _save(model: Any, path: Path, facts: Facts) -> None:
    import openvino

    model.set_rt_info(json.dumps(facts | {"opset": OPSET}), "zerotprune")
    try:
        openvino.save_model(model, path, compress_to_fp16=False)
    except RuntimeError as error:  # from C++, which does not say why
        raise OSError(f"OpenVINO failed to write ({error}), is the disk full?") from None


def _left_in_float(model: Any) -> list[str]:
    """Name all nodes but the layers with weights. The choice of tokens needs float precision, and
    its matrix products are too small to gain from int8."""
    return [
        node.get_friendly_name()
        for node in model.get_ops()
        if node.get_type_name() not in ("Constant", "Parameter", "Result", "Convolution")
        and not (node.get_type_name() == "MatMul" and _has_weights(node))
    ]


def _has_weights(product: Any) -> bool:
    return bool(product.input_value(1).get_node().get_type_name() == "Constant")
