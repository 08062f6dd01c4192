"""ONNX, run by ONNX Runtime; int8 by its static quantizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..files import parsed
from .target import Facts, Run, Target, facts_in, quiet

#: has Gelu, and ScatterElements that add
OPSET = 20
_PREFIX = "zerotprune."
_LARGEST = 2**31 - 1  # bytes of a protobuf


class Onnx(Target):
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
            made.model.metadata_props.update(_written(facts | {"opset": OPSET}))
            made.save(path)

    def load(self, path: Path, threads: int | None) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: it warns of every constant that it does not fold
        if threads is not None:
            options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

        def run(images: Tensor) -> Tensor:
            return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

        return run

    def quantize(self, source: Path, path: Path, images: Tensor, facts: Facts) -> None:
        import onnx
        from onnxruntime import quantization

        held = onnx.load(source)
        size = held.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1
        batches: Iterator[Tensor] = iter(images[: len(images) // size * size].split(size))

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> dict[str, Any] | None:
                batch = next(batches, None)
                return None if batch is None else {"images": batch.numpy()}

        with quiet():
            quantization.quantize_static(
                held,
                path,
                Reader(),
                op_types_to_quantize=["Conv", "Gemm", "MatMul"],
                per_channel=True,
                # Attention, and what decides which tokens stay, is left in float.
                extra_options={"MatMulConstBOnly": True},
            )
        written = onnx.load(path)
        onnx.helper.set_model_props(written, _written(facts | {"opset": OPSET}))
        onnx.save(written, path)

    def files(self, path: Path) -> list[Path]:
        """Weights of more than 2 GB lie in a second file."""
        return [path, path.with_name(f"{path.name}.data")]

    def read(self, path: Path) -> dict[str, Any]:
        self.check()
        import onnx
        from google.protobuf.message import DecodeError

        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path} is not an ONNX file: none has more than 2 GB")
        try:
            held = onnx.load(path, load_external_data=False)
            told = {each.key: each.value for each in held.metadata_props}
        except (DecodeError, UnicodeDecodeError):
            raise ValueError(f"{path} is not an ONNX file") from None
        own = {key: text for key, text in told.items() if key.startswith(_PREFIX)}
        if not own:
            raise ValueError(f"{path} was not written by zerotprune: it says nothing of itself")
        return facts_in(
            path,
            lambda: {key.removeprefix(_PREFIX): parsed(text) for key, text in own.items()},
        )


def _written(facts: Facts) -> dict[str, str]:
    return {f"{_PREFIX}{name}": json.dumps(value) for name, value in facts.items()}


TARGET = Onnx()
