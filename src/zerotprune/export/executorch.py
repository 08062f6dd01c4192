"""ExecuTorch with XNNPACK: what XNNPACK does not know runs by ExecuTorch's portable kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from .target import Facts, Run, Target, quiet, tell


class ExecuTorch(Target):
    name, runtime, ending = "executorch", "ExecuTorch", ".pte"
    packages = ("executorch",)
    dynamic = False

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        with quiet():
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
            path.write_bytes(edge.to_executorch().buffer)
        tell(path, facts | _cut(edge.exported_program()))

    def load(self, path: Path, threads: int | None) -> Run:
        with quiet():
            from executorch.runtime import Runtime

            loaded = Runtime.get().load_program(path).load_method("forward")

        def run(images: Tensor) -> Tensor:
            output: Tensor = loaded.execute([images])[0]
            return output

        return run


def _cut(program: ExportedProgram) -> dict[str, Any]:
    """Into how many parts the graph is cut for XNNPACK, and what runs between them, how often."""
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    delegates = sum("call_delegate" in call for call in calls)
    between = Counter(
        call.removeprefix("aten.").partition(".")[0]
        for call in calls
        if not any(word in call for word in ("call_delegate", "getitem", "<function"))
    )
    return {"xnnpack_parts": delegates, "portable": dict(between.most_common())}


TARGET = ExecuTorch()
