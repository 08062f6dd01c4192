"""OpenVINO, by way of ONNX; int8 by nncf.

Its own front end for torch cannot take a pruned model; what it reads from ONNX it gives right.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from . import onnx
from .target import Facts, Run, Target, quiet, tell


class OpenVino(Target):
    name, runtime, ending = "openvino", "OpenVINO", ".xml"
    packages = ("onnx", "onnxscript", "openvino")
    quantizer = ("nncf",)

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        import openvino

        with TemporaryDirectory() as folder:
            between = Path(folder, "model.onnx")
            onnx.TARGET.write(program, between, facts)
            with quiet():
                openvino.save_model(openvino.convert_model(between), path, compress_to_fp16=False)
        tell(path, facts | {"opset": onnx.OPSET})

    def load(self, path: Path, threads: int | None) -> Run:
        import openvino

        # Else it would take bfloat16 on processors that have it.
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            config["INFERENCE_NUM_THREADS"] = threads
        with quiet():
            compiled = openvino.compile_model(path, "CPU", config)

        def run(images: Tensor) -> Tensor:
            return torch.from_numpy(compiled(images.numpy())[0].copy())

        return run

    def quantize(self, source: Path, path: Path, images: Tensor, facts: Facts) -> None:
        import openvino

        with quiet():
            import nncf

            model = openvino.Core().read_model(source)
            size = model.input().partial_shape[0]
            step = size.get_length() if size.is_static else 1
            batches = images[: len(images) // step * step].split(step)
            small = nncf.quantize(
                model,
                nncf.Dataset([batch.numpy() for batch in batches]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(batches),
                ignored_scope=nncf.IgnoredScope(names=_left_in_float(model), validate=False),
            )
            openvino.save_model(small, path, compress_to_fp16=False)
        tell(path, facts | {"opset": onnx.OPSET})

    def files(self, path: Path) -> list[Path]:
        return [path.with_suffix(".bin"), *super().files(path)]


def _left_in_float(model: Any) -> list[str]:
    """All but the layers with weights: what decides which tokens stay is as good as its numbers,
    and is not made of products large enough to gain."""
    return [
        each.get_friendly_name()
        for each in model.get_ops()
        if each.get_type_name() not in ("Constant", "Parameter", "Result", "Convolution")
        and not (each.get_type_name() == "MatMul" and _has_weights(each))
    ]


def _has_weights(product: Any) -> bool:
    return bool(product.input_value(1).get_node().get_type_name() == "Constant")


TARGET = OpenVino()
