"""One model's files for a runtime, in every precision that is asked for; and what to time it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..measure.speed import LIMIT, UNPRUNED, limit_of, noise
from ..methods import name_of
from ..surgery import attach, current_plan, restore_, sharing_copy
from .facts import BatchSize, facts_of
from .target import Target, quiet

Precision = Literal["float32", "int8"]


@dataclass(frozen=True)
class Job:
    """What all models of one export have in common."""

    target: Target
    batch: BatchSize
    precisions: tuple[Precision, ...]
    images: Tensor
    threads: int | None
    say: Callable[[str], None]

    @property
    def step(self) -> int:
        return 1 if self.batch == "dynamic" else self.batch


def program_of(model: nn.Module, batch: BatchSize) -> ExportedProgram:
    """The model as torch exports it, which every target starts from."""
    # A batch of 1 would be taken for the only one.
    images = noise(model, 2 if batch == "dynamic" else batch, "cpu", torch.float32)
    shapes = {0: Dim("batch", min=1, max=4096)} if batch == "dynamic" else None
    with torch.no_grad(), quiet():
        program = torch.export.export(model, (images,), dynamic_shapes=(shapes,))
        outputs = program.graph_signature.user_outputs
    if len(outputs) != 1:
        raise ValueError(
            f"the model puts out {len(outputs)} things: wrap it in a module that gives one tensor"
        )
    return program


def write(job: Job, model: nn.Module, path: Path) -> dict[Precision, Path]:
    """The model's file in each precision."""
    plan = current_plan(model)
    name = UNPRUNED if plan is None else name_of(plan.method)
    path.parent.mkdir()
    job.say(f"{name}: exporting")
    facts = partial(facts_of, model, job.target, job.batch)
    job.target.write(program_of(model, job.batch), path, facts("float32"))
    files: dict[Precision, Path] = {"float32": path}
    if "int8" in job.precisions:
        job.say(f"{name}: quantising")
        files["int8"] = path.parent / "int8" / path.name
        files["int8"].parent.mkdir()
        job.target.quantize(path, files["int8"], job.images, facts("int8"))
    return files


def rivals(model: nn.Module) -> dict[str, nn.Module]:
    """The unpruned model, and the limit of the schedule."""
    plan = current_plan(model)
    assert plan is not None
    limit = limit_of(plan.schedule, plan.geometry)
    return {
        UNPRUNED: restore_(sharing_copy(model)),
        LIMIT: attach(sharing_copy(model), limit, outputs=plan.outputs),
    }
