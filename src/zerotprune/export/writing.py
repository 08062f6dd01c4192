"""Write a model's files for a runtime, in every precision, with a description of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from .. import __version__
from ..backbones import backbone
from ..measure.accuracy import UNPRUNED
from ..measure.speed import LIMIT, limit_of, noise
from ..methods import name_of, to_data
from ..plan import Plan
from ..schedule import Schedule
from ..surgery import attach, current_plan, restore_, sharing_copy
from .target import Facts, Target, quiet

BatchSize = int | Literal["dynamic"]  # images at a time
FilePrecision = Literal["float32", "int8"]


@dataclass(frozen=True)
class Job:
    """What all models of one export have in common."""

    target: Target
    batch: BatchSize
    precisions: tuple[FilePrecision, ...]
    images: Tensor
    threads: int | None
    say: Callable[[str], None]
    full_range: bool = False  # of int8 weights: see `Target.quantize`

    @property
    def step(self) -> int:
        return 1 if self.batch == "dynamic" else self.batch


def write_model(job: Job, model: nn.Module, path: Path) -> dict[FilePrecision, Path]:
    """Write the model's file in each precision."""
    plan = current_plan(model)
    name = UNPRUNED.name if plan is None else name_of(plan.method)
    path.parent.mkdir()
    job.say(f"{name}: exporting")
    facts = facts_of(model, job.target, job.batch)
    job.target.write(program_of(model, job.batch), path, facts)
    files: dict[FilePrecision, Path] = {"float32": path}
    if "int8" in job.precisions:
        job.say(f"{name}: quantizing")
        files["int8"] = path.parent / "int8" / path.name
        files["int8"].parent.mkdir()
        facts |= int8_facts(job.full_range)
        job.target.quantize(path, files["int8"], job.images, facts, job.full_range)
    return files


def program_of(model: nn.Module, batch: BatchSize) -> ExportedProgram:
    """Export the model by torch, the first step of every target."""
    # With one example image, torch would fix the batch to 1.
    images = noise(model, 2 if batch == "dynamic" else batch, "cpu", torch.float32)
    shapes = {0: Dim("batch", min=1, max=4096)} if batch == "dynamic" else None
    with torch.no_grad(), quiet():
        program = torch.export.export(model, (images,), dynamic_shapes=(shapes,))
        outputs = program.graph_signature.user_outputs
    if len(outputs) != 1:
        raise ValueError(
            f"expected a model with one output, got {len(outputs)}: wrap it in a module that "
            "returns one tensor"
        )
    return program


def rivals(model: nn.Module) -> dict[str, nn.Module]:
    """Return the unpruned model, and the limit of the schedule."""
    plan = current_plan(model)
    assert plan is not None
    limit = limit_of(plan.schedule, plan.geometry)
    return {
        UNPRUNED.name: restore_(sharing_copy(model)),
        LIMIT: attach(sharing_copy(model), limit, outputs=plan.outputs),
    }


def facts_of(model: nn.Module, target: Target, batch: BatchSize) -> Facts:
    """Describe the model, as it is pruned now, for a file in float32."""
    vit, plan = backbone(model), current_plan(model)
    schedule = plan.schedule if plan is not None else Schedule()
    geometry = vit.geometry
    return {
        "model": vit.name or type(vit.model).__name__,
        "schedule": json.loads(schedule.to_json()),
        "method": to_data(schedule.method) if schedule.stages else None,
        "gmacs": round((plan or Plan(schedule, geometry)).gmacs(), 6),
        "gmacs_unpruned": round(Plan(Schedule(), geometry).gmacs(), 6),
        "input": {"batch": batch, "shape": list(vit.input_shape)},
        "preprocessing": preprocessing(model),
        "class_names": vit.class_names(),
        "precision": "float32",
        "runtime": target.runtime,
        "versions": {"zerotprune": __version__, **target.versions()},
    }


def int8_facts(full_range: bool) -> Facts:
    """Return the further facts of a file in int8."""
    weights = "8 bits, for CPUs with VNNI only" if full_range else "7 bits, for every CPU"
    return {"precision": "int8", "int8_weights": weights}


def preprocessing(model: nn.Module) -> dict[str, Any]:
    """Describe how an image becomes the model's input: resize, crop the middle, subtract the mean
    from values in [0, 1] and divide by the standard deviation. None stands for what the model's
    transform does not say."""
    vit = backbone(model)
    _, height, width = vit.input_shape
    mean, std = vit.normalization
    resize = next(
        (step for step in _steps(vit.transform()) if hasattr(step, "interpolation")), None
    )
    interpolation = getattr(resize, "interpolation", None)
    size = getattr(resize, "size", None)
    return {
        "size": [height, width],
        "resize": size if size is None or isinstance(size, int) else list(size),
        "interpolation": None
        if interpolation is None
        else str(getattr(interpolation, "value", interpolation)),
        "mean": list(map(float, mean)),
        "std": list(map(float, std)),
    }


def _steps(transform: Any) -> Iterator[Any]:
    yield from getattr(transform, "transforms", [transform])
