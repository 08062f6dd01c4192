"""torch itself: the exported program, which runs without this library and the model's own."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from .target import Facts, Run, Target, quiet, tell


class Torch(Target):
    name, runtime, ending = "torch", "torch", ".pt2"

    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        made = io.BytesIO()  # torch ends the process where a disk is full
        with quiet():
            torch.export.save(program, made)
        path.write_bytes(made.getbuffer())
        tell(path, facts)

    def load(self, path: Path, threads: int | None) -> Run:
        with quiet():
            module = torch.export.load(path).module()

        def run(images: Tensor) -> Tensor:
            with torch.inference_mode():
                output: Tensor = module(images)
            return output

        return run


TARGET = Torch()
