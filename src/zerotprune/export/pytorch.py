"""PyTorch's own runtimes: torch, with a file that needs no library of models, and ExecuTorch."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..safety.files import MOST_TEXT, text_of
from .target import Facts, Run, Target, no_facts, parse_facts, quiet

_FACTS = "zerotprune.json"


class Torch(Target):
    """An exported program. Its facts are in the archive."""

    name, runtime, ending = "torch", "torch", ".pt2"

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        archive = io.BytesIO()  # torch ends the process if the disk is full
        with quiet():
            torch.export.save(program, archive, extra_files={_FACTS: json.dumps(facts)})
        path.write_bytes(archive.getbuffer())

    def load(self, path: Path, threads: int | None) -> Run:
        with quiet():
            module = torch.export.load(path).module()

        def run(images: Tensor) -> Tensor:
            before = torch.get_num_threads()
            torch.set_num_threads(threads or before)
            try:
                with torch.inference_mode():
                    output: Tensor = module(images)
            finally:
                torch.set_num_threads(before)
            return output

        return run

    def read(self, path: Path) -> Facts:
        try:
            with zipfile.ZipFile(path) as archive:
                entries = [entry for entry in archive.infolist() if entry.filename.endswith(_FACTS)]
                if not entries or entries[0].file_size > MOST_TEXT:
                    raise no_facts(path)
                text = archive.read(entries[0])
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
            raise ValueError(f"{path} is not a .pt2 file") from None
        return parse_facts(path, text)


class ExecuTorch(Target):
    """ExecuTorch with XNNPACK; what XNNPACK lacks runs in the portable kernels."""

    name, runtime, ending = "executorch", "ExecuTorch", ".pte"
    packages = ("executorch",)
    dynamic = False

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        with quiet():
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
            path.write_bytes(edge.to_executorch().buffer)
        text = json.dumps(facts | _delegation(edge.exported_program()), indent=2)
        _description(path).write_text(text + "\n", encoding="utf-8")

    def load(self, path: Path, threads: int | None) -> Run:
        with quiet():
            from executorch.extension.pybindings import portable_lib
            from executorch.runtime import Runtime

            # One pool serves the process, and a loaded method keeps its address: it may change
            # between two exports, whose files all have the same threads, and not within one.
            own = _own_threads()
            wanted = threads or own
            if portable_lib._threadpool_get_thread_count() != wanted:
                portable_lib._unsafe_reset_threadpool(wanted)
            method = Runtime.get().load_program(path).load_method("forward")

        def run(images: Tensor) -> Tensor:
            output: Tensor = method.execute([images])[0]
            return output

        return run

    def files(self, path: Path) -> list[Path]:
        """List the files: a .pte has no room for facts, so they are in a JSON file."""
        return [_description(path), path]

    def read(self, path: Path) -> Facts:
        description = _description(path)
        if not description.is_file():
            raise ValueError(f"{path} has no description: no {description.name} beside it")
        return parse_facts(description, text_of(description, "description of a model"))


@cache
def _own_threads() -> int:
    """Return the threads that ExecuTorch chose for itself."""
    from executorch.extension.pybindings import portable_lib

    count: int = portable_lib._threadpool_get_thread_count()
    return count


def _description(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _delegation(program: ExportedProgram) -> dict[str, Any]:
    """Count the parts that XNNPACK runs, and the operators that run between them."""
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    delegates = sum("call_delegate" in call for call in calls)
    between = Counter(
        call.removeprefix("aten.").partition(".")[0]
        for call in calls
        if not any(word in call for word in ("call_delegate", "getitem", "<function"))
    )
    return {"xnnpack_parts": delegates, "portable": dict(between.most_common())}
